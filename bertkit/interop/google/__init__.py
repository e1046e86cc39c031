"""Checkpoints of google-research/bert, read and written without TensorFlow: table, bundle of tensors, BERT's variables."""
