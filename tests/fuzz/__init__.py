"""Fuzzing: damaged and hostile input gets an answer or a StepgradError, and nothing outside its folder changes.

`readers.py` is the table of what is tried, `seeds.py` the valid files that are damaged, `damage*.py` how, `guarded.py` runs
one case. `python -m tests.fuzz` runs as many cases as asked for; `corpus/` holds every input that once failed.
"""
