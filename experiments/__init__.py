"""Experiments on real images: each module is one command that writes its results as JSON and as a table."""
