"""The tokenizers that are learned from text: their alphabet, and the trainers of the library `tokenizers`."""
