"""BERT's family: a file for each model type that has BERT's layers, by other names or with small changes."""
