"""bertkit beside the Hugging Face way on the same work."""
