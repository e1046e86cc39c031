"""Checkpoints of google-research/bert, read and written without TensorFlow: the file format, and BERT's variables."""
