"""What is built on the library, and never imported by it: commands use it through its doors, and without this folder all else works.

Doors:

    server.server             the command `serve`
    retrieval.library         a library of passages in an SQLite file: BM25 search, and exact search by vectors
    retrieval.library_writer  adding documents and vectors to a library, and removing documents
    retrieval.passages        documents -> overlapping passages; texts -> search words
    retrieval.encoders        the encoder that makes the vectors of passages and questions
    retrieval.questions       reading a file of questions, with the right passages if known
    retrieval.rankings        opens a library with its models; the passages for one question or for many
    retrieval.readable        answers as lines for a terminal
    retrieval.judging         metrics of rankings, with intervals
    explain.explain           computes an `Explanation` of one input, and writes it as JSON
    explain.request           reads the input to explain, and refuses a picture that the model cannot give
    explain.positions         shows what positions say about the distance between tokens
    explain.pictures          draws attention and alignments as a page, SVG and PNG
"""
