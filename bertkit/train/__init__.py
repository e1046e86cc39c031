"""The training loop. Knows a module, batches and a loss; has never heard of BERT."""
