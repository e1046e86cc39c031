"""Positions that learn something for each distance between two tokens: vectors compared with queries and keys, or numbers added to scores."""
