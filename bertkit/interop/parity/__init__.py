"""The comparison with `transformers`, and its certificate."""
