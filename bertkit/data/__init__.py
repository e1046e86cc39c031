"""Text -> token ids on disk -> packed batches. Knows no model.

corpus/, text to disk:

1. Text -> documents, lists of sentences: sources.py finds and cuts files, documents.py reads them.
2. Documents -> tokenizer: vocabulary.py learns or reads a vocabulary, tokenizer.py builds the tokenizer.
3. Documents -> ids: encoded_documents.py runs the worker processes and writes their files; word_cache.py remembers
   tokenized words, long_texts.py tokenizes long texts in parts.
4. Ids -> dataset: dataset_writer.py holds documents out, prepared.py is the dataset on disk, manifest.py its description for
   programs; statistics.py counts and warns.

batches/, disk to batches:

5. Documents -> pairs: segments.py, with keyed random numbers (keyed_random.py).
6. Pairs -> masks -> a packed batch: masking.py, collate.py.
7. Batches -> step: sampling.py selects the examples of a step and caches the pairs of an epoch.

Instead of 5 to 7, google_instances.py draws the fixed instances of the original, and instances.py stores and prints
them. description.py describes a dataset for people.

Doors:

    data_config               the settings
    corpus.documents          documents of a text
    corpus.tokenizer          text to ids and back
    corpus.parquet            records of a parquet file
    corpus.google_words       text to words by Google's rules
    corpus.encoded_documents  documents to ids, in several processes, and their files
    corpus.statistics         counts of a text, and warnings about it
    corpus.manifest           the manifest of a dataset
    corpus.prepared           the dataset on disk
    corpus.dataset_writer     encoded documents, also from shards, to the splits of a dataset
    corpus.sources            files and how they are cut; sentence splitting
    batches.description       a dataset described in words
    batches.instances         the fixed instances on disk, and as JSON lines
    batches.sampling          the batches of a step
    batches.keyed_random      random numbers as functions of their keys
"""
