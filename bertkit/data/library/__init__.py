"""A library: passages of documents, found by the words of a question. Text alone, no model.

1. Documents -> passages: passages.py cuts them, and says which words of a text are searched for.
2. Passages -> a file: library.py, SQLite (file.py) with its FTS5, grows bit by bit and finds by BM25.
"""
