"""Hugging Face model directories, from a disk or the hub."""
