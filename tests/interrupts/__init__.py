"""Real calls interrupted by Ctrl-C at random moments: `python -m tests.interrupts`."""
