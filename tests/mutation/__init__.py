"""Mutation runs: does the suite notice when one line of the package is wrong? See CONTRIBUTING.md."""
