"""The tokenizers that are learned from text, with the trainers of the library `tokenizers`; and formats that need to be converted."""
