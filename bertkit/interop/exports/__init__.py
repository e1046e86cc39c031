"""Files that an export adds to a Hugging Face directory: model card, ONNX, sentence-transformers."""
