"""The numerical comparison of a model with `transformers`, and its result, the certificate."""
