"""Training a detector: what is asked for (config), the loop (engine), and what a run leaves on disk."""

from stepgrad.extras import need

need("lightning_fabric", "safetensors", "tensorboard", "yaml", purpose="stepgrad.detector.training")
