"""The commands of `fastvideo rl`."""
