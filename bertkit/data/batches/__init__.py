"""From disk to batches: pairs of segments, masks, packed batches, and the examples of a training step."""
