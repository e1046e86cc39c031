"""Models of others, in and out: every parameter name, file format and foreign implementation that bertkit knows is here.

Inside the house there is one kind of model, ours. A directory comes in through `load`, whoever wrote it; it goes out as a
directory of Hugging Face, with other layouts beside it. The names of parameters stand in `hugging_face/names.py`,
those of Google's in `google/checkpoint.py`.

    padded                         a model for callers with padded tensors
    load                           any model directory or hub id -> a model and its tokenizer
    hugging_face.directory         a model -> a directory that transformers loads
    hugging_face.config_json       what transformers can compute of a model
    google.checkpoint              the checkpoints of google-research/bert
    parity.comparison              the comparison with transformers
    parity.certificate             its result: what is read, checked and shown of it
    exports.card                   the model card
    exports.onnx                   ONNX beside the weights
    exports.sentence_transformers  the layout of sentence-transformers
"""
