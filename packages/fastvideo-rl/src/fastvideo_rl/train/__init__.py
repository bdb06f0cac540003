"""The trainer: roles of weights, optimizers, checkpoints, logs."""
