"""What an export holds beside Hugging Face's own files: card, ONNX, sentence-transformers."""
