"""A page for each command."""
