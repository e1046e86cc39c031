"""Hugging Face: parameter names, config.json, weight files, model directories and the hub, without `transformers`."""
