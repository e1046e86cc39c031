"""Checkpoints of google-research/bert, read and written without TensorFlow."""
