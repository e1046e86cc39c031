"""The comparison with `transformers`, number by number, and its certificate."""
