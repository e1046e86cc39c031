"""Other people's models, in and out: every parameter name, file format and foreign implementation that bertkit knows is here.

Every directory is loaded through `load` into bertkit's one kind of model, and written as a Hugging Face directory, with
other layouts beside it. Hugging Face's parameter names are in `hugging_face/names.py`, Google's in `google/checkpoint.py`.

    padded                         a model for callers with padded tensors
    load                           any model directory or hub id -> a model and its tokenizer
    hugging_face.directory         a model -> a directory that transformers loads
    hugging_face.config_json       config.json, and the models that transformers can compute
    google.checkpoint              the checkpoints of google-research/bert
    parity.comparison              the comparison with transformers
    parity.certificate             its result: reading, checking and showing it
    exports.card                   the model card
    exports.onnx                   ONNX beside the weights
    exports.sentence_transformers  the layout of sentence-transformers
"""
