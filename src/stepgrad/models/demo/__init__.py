"""What `stepgrad demo` shows: a trained detector that comes with the package, and a new class head for it."""
