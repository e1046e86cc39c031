"""Search: a library of passages, and a reader model that finds the answers to a question in them.

Doors:

    library         a library of passages in an SQLite file: BM25 search, and exact search by vectors
    library_writer  adding documents and vectors to a library, and removing documents
    library_file    checking, opening and writing the SQLite file
    passages        documents -> overlapping passages; texts -> search words
    vectors         numbers of 32 or 8 bits, and their products with a question
    encoders        the encoder that makes the vectors of passages and questions
    questions       reading a file of questions, with the right passages if known
    snippets        the part of a passage that is shown, with the words of the question marked
    ranking         passages ranked by BM25, by vectors, by both of them, or by a reader model
    rankings        the passages for many questions
    readable        answers as lines for a terminal
    judging         metrics of rankings, with intervals
"""
