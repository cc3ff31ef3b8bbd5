"""Experiments on real images: each module is one command that adds runs to its JSONL file and writes them as a table."""
