"""`python -m stepgrad.check_device cuda`: whether the losses work on a device as they do on the CPU, and what they cost there."""
