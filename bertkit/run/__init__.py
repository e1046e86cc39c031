"""A run: its directory, model, optimizer and checkpoints; what it minimises, measures and answers."""
