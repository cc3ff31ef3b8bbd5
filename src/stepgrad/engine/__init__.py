"""Everything compiled: the step search in one class of a batch, told in README.md."""
