"""What an export holds besides Hugging Face's own files: cards, ONNX, sentence-transformers."""
