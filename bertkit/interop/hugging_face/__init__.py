"""Hugging Face: names of parameters, config.json, files of weights, whole directories, the hub; without `transformers`."""
