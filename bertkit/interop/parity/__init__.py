"""The comparison with `transformers`, number by number, and the certificate of it."""
