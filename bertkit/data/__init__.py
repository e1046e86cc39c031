"""Data preparation: text -> token ids on disk -> packed batches. Nothing here depends on a model.

texts/, from files to documents:

1. Text to documents, which are lists of sentences: sources.py finds the files and cuts them into portions; documents.py
   reads them with records.py, and parquet.py the records of parquet and arrow files; python_docs.py collects the documentation
   of Python.

corpus/, from documents to disk:

2. Documents to a tokenizer: tokenizers/learn.py learns one, with the characters that tokenizers/alphabet.py chooses;
   tokenizers/other_formats.py finds a vocabulary in another format, or says how to convert it;
   tokenizers/published.py reads those of published models; tokenizer.py builds the tokenizer, by the rules in word_rules.py, or for any
   other kind those in tokenizer_file.py.
   library_calls.py, beside this file, guards the calls of the library `tokenizers`.
3. Documents to token ids: encoded_documents.py runs the worker processes and writes their files; word_cache.py caches
   tokenized words; long_texts.py tokenizes long texts in parts.
4. Token ids to a dataset: dataset_writer.py splits the documents into train and held_out; prepared.py opens the dataset;
   manifest.py describes it for programs; statistics.py counts tokens and warns about faults.

batches/, from disk to batches:

5. Documents to pairs of segments: segments.py, with the random numbers of keyed_random.py.
6. Pairs to a masked, packed batch: masking.py, collate.py.
7. The batches of a training step: sampling.py selects the examples of a step and caches the pairs of an epoch.

A dataset brings its sampler: examples.py opens it, and whoever asks for batches need not know where the examples come from.
With segments=google, google_instances.py and instances.py replace steps 5 to 7: they draw, store and print the fixed
instances of Google's original program. description.py describes a dataset for people.

Doors:

    data_config               the settings
    library_calls             for how long a call of the library `tokenizers` has been running
    texts.documents           reading documents from files and hub datasets
    texts.records             a document with its place
    texts.parquet             records of parquet and arrow files
    texts.workbooks           the cells of Excel workbooks
    texts.sources             finding and cutting files; sentence splitting
    corpus.tokenizer          text to ids and back
    corpus.google_words       text to words by Google's rules
    corpus.encoded_documents  documents to ids, in several processes, and their files
    corpus.statistics         counts of a corpus, and warnings about it
    tokenizers.published      the tokenizer that the files of a model describe
    tokenizers.files          the files of a tokenizer, and the class that reads them
    tokenizers.other_formats  the files of a folder's vocabulary
    corpus.manifest           the manifest of a dataset
    corpus.prepared           the dataset on disk
    corpus.dataset_writer     encoded documents, also from shards, to the splits of a dataset
    batches.examples          opens the examples of a dataset, drawn from its text or stored
    batches.description       a dataset described in words
    batches.instances         Google's fixed instances on disk, and as JSON lines
    batches.sampling          the batches of a step
    batches.controls          what a model predicts without context: by counting tokens, or among shuffled words
    batches.keyed_random      random numbers as functions of their keys
"""
