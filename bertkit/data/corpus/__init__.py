"""Text to disk: documents, a vocabulary, token ids, and the prepared dataset."""
