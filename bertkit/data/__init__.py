"""From text to packed batches of token ids. Knows no model.

1. Text -> documents: corpus.py reads what sources.py finds and cuts: files, or a text that every machine has. A
   document is a list of sentences.
2. Documents -> tokenizer: vocabulary.py learns a vocabulary or reads one; tokenizer.py makes a tokenizer of it.
3. Documents -> ids: encoded_documents.py shares the text out among processes and keeps the result on the disk;
   word_cache.py remembers what was tokenized; long_texts.py cuts what is tokenized in parts.
4. Ids -> dataset: splitting.py holds documents out, prepared.py is the dataset on the disk,
   manifest.py what it says of itself; statistics.py counts,
   describes, and says what is wrong. What several machines have encoded becomes one dataset.
5. Documents -> pairs: segments.py, drawn by keys (keyed_random.py).
6. Pairs -> masks -> a packed batch: masking.py, collate.py.
7. Batches -> step: sampling.py says which examples make up a step, and keeps the pairs of an epoch.

Instead of 5 to 7, google.py draws the fixed instances of the original, and instances.py stores and prints them.

Doors:

    config             the settings
    corpus             documents of a text
    tokenizer          text to ids and back
    parquet            records of a parquet file
    google_words       text to words by Google's rules
    encoded_documents  documents to ids, in several processes, and what they leave on the disk
    splitting          encoded documents, also of several machines, to splits
    statistics         what a dataset has, and what is wrong with its text
    manifest           what a dataset says of itself
    prepared           the dataset on the disk
    instances          the fixed instances on the disk, and as JSON lines
    sources            files and how they are cut; the rule for sentences
    sampling           the batches of a step
    library.passages   documents to passages, and the words that they are found by
    library.library    passages on the disk, found by BM25
    library.file       the file that they are in
    keyed_random       draws that are functions of their keys
"""
