"""Passages for a question: a library of passages, readers of questions, and the ranking.

Doors:

    library       the SQLite file: BM25 search, and transactions that grow it
    library_file  its connections and errors
    passages      documents -> overlapping passages
    questions     files of questions, with their right passages if known
    ranking       passages in the order of BM25, of a reader, or of both
"""
