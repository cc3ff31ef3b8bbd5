"""Training frameworks: callbacks for Lightning and the Hugging Face Trainer, and a metric for torchmetrics."""
