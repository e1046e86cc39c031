"""The encoder and its heads. Knows tensors; imports only torch."""
