"""`python -m stepgrad.cli`."""

from stepgrad.cli import run

run()
