"""Search: a library of passages, and a reader model that finds the answers to a question in them.

Doors:

    library       a library of passages in an SQLite file: indexing files, and BM25 search
    library_file  checking, opening and writing the SQLite file
    passages      documents -> overlapping passages; texts -> search words
    questions     reading a file of questions, with the right passages if known
    ranking       passages ranked by BM25, by a reader model, or by both
"""
