"""Texts of many formats, read as documents."""
