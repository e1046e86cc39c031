"""From text to packed batches of token ids. Knows no model."""
