"""Training a detector: what is asked for (config), the loop (engine), and what a run leaves on disk."""
