"""A library of passages: built from documents, searched by words, ranked by a reader.

Doors:

    passages      cuts documents into passages, and finds the words to search for
    library       passages in one SQLite file with FTS5, ranked by BM25
    library_file  the SQLite file: its schema, connections, transactions and errors
    questions     questions with the passages that answer them
    ranking       passages in the order of the engine, of a reader, or of both
"""
