"""BERT over packed tokens: the sequences of a batch lie one after another, without padding. Only torch is needed.

`attention.py` holds the equation of attention, and `geometry.py` which keys each query attends to. `slots.py` says what users may
choose in attention, and what BERT does there; the other scores, positions and patterns are in one file each, positions that
learn from distances in `distances/`. `bert.py` is the encoder, `poolers.py` one vector for each text, `head/` what a task adds, `heads.py` all of it; `recurrent/` has encoder and decoder of GRUs or LSTMs.

Doors:

    bert_config       the hyper-parameters
    attention_config  those of attention, and which of its options fit together
    heads             the encoder with its heads: the model that a run trains
    head.head         a head: its module, its shape, its class of transformers, what a certificate compares
    head.built_in     the heads of BERT
    label_scale       the head of a regression that learns labels of any size
    initialisation    the initial weights
    attention         the equation
    positions         sinusoids, rotations and distances
    decoder           a Transformer decoder with cross-attention
    layers            freeze or compile single layers
    recorded          passes of training, recorded as CUDA graphs
"""
