"""Optional files of an export: model card, ONNX, sentence-transformers."""
