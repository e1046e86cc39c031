"""A library: passages of documents, and the engine that finds them by the words of a question. Text alone, no model.

1. Documents -> passages: passages.py cuts them, and says which words of a text are searched for.
2. Passages -> a file: library.py, SQLite (file.py) with its FTS5, grows bit by bit and finds by BM25.
3. A question -> passages: engines.py; the library here, or a search engine of the user's on the network.
"""
