"""Training: what stands between a model and a run."""
