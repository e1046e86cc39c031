"""Extractive question answering: the answer to a question is a span, a part of its context."""
