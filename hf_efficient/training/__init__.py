"""Training: arguments, runs, trainers, callbacks, losses, metrics and checkpoints."""
