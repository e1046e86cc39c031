"""Disk to batches: pairs, masks, packed batches, and which of them make up a step."""
