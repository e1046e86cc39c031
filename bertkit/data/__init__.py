"""From text to packed batches of token ids. Knows no model.

corpus/, text to disk:

1. Text -> documents: documents.py reads what sources.py finds and cuts: files, or a text that every machine has. A
   document is a list of sentences.
2. Documents -> tokenizer: vocabulary.py learns a vocabulary or reads one; tokenizer.py makes a tokenizer of it.
3. Documents -> ids: encoded_documents.py shares the text out among processes and keeps the result on the disk;
   word_cache.py remembers what was tokenized; long_texts.py cuts what is tokenized in parts.
4. Ids -> dataset: splitting.py holds documents out, prepared.py is the dataset on the disk,
   manifest.py what it says of itself; statistics.py counts,
   describes, and says what is wrong. What several machines have encoded becomes one dataset.

batches/, disk to batches:

5. Documents -> pairs: segments.py, drawn by keys (keyed_random.py).
6. Pairs -> masks -> a packed batch: masking.py, collate.py.
7. Batches -> step: sampling.py says which examples make up a step, and keeps the pairs of an epoch.

Instead of 5 to 7, google_instances.py draws the fixed instances of the original, and instances.py stores and prints them.

Doors:

    data_config               the settings
    corpus.documents          documents of a text
    corpus.tokenizer          text to ids and back
    corpus.parquet            records of a parquet file
    corpus.google_words       text to words by Google's rules
    corpus.encoded_documents  documents to ids, in several processes, and what they leave on the disk
    corpus.splitting          encoded documents, also of several machines, to splits
    corpus.statistics         what a dataset has, and what is wrong with its text
    corpus.manifest           what a dataset says of itself
    corpus.prepared           the dataset on the disk
    corpus.dataset_writer     writes it from encoded documents
    corpus.sources            files and how they are cut; the rule for sentences
    batches.instances         the fixed instances on the disk, and as JSON lines
    batches.sampling          the batches of a step
    batches.keyed_random      draws that are functions of their keys
"""
