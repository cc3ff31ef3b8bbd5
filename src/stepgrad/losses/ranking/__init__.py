"""Ranking: metrics of lists of scored documents, their exact nearest steps, and losses that train for them."""
