"""Spans: a question and a context -> windows -> an answer from the context, or none."""
