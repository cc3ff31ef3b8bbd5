"""What training for the metric a detector is deployed by brings: class heads on frozen features."""
