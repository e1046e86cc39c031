"""Spans: the answer to a question is a part of its context."""
