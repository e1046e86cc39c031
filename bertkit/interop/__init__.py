"""Models in the formats of other libraries: reading, writing, and comparison with `transformers`.

`load` reads every format into the same bertkit model. Models are written as Hugging Face directories, and exports can add the
files of other formats. Hugging Face's parameter names are in `hugging_face/names.py`, Google's in `google/checkpoint.py`. Doors:

    model_dir                      the directory that a setting names, and hashes of its files
    padded                         a model for callers with padded tensors
    load                           the model and the tokenizer of any model directory or hub id
    hugging_face.directory         write a directory that transformers loads
    hugging_face.config_json       config.json, and whether transformers can compute a model
    hugging_face.tokenizer_classes tokenizers that a class of transformers builds
    hugging_face.generation_json   how a published model writes texts
    google.checkpoint              the checkpoints of google-research/bert
    parity.comparison              the comparison with transformers
    parity.certificate             the certificate of a comparison: read, check and summarise it
    exports.export                 a model in the files of other libraries, published only if they compute the same
    exports.card                   the model card
    exports.onnx                   the model in ONNX format
    sentence_transformers.folder   how a folder of sentence-transformers makes a vector of a text
    sentence_transformers.layout   the files of sentence-transformers
"""
