"""Runs a stage on a device: forward, backward, exact sums, reduction and optimizer step."""
