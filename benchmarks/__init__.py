"""Speed and memory, side by side with peers in one run; results as JSON and as a table."""
