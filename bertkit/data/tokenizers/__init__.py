"""The tokenizers that are learned from text, and those of other programs: what the files of a model directory describe."""
