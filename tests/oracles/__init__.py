"""Slow, obvious twins of the library, written from the definitions alone. Plain Python on plain numbers."""
