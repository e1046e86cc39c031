"""BERT over packed tokens: the sequences of a batch lie one after another, without padding. Only torch is needed.

`attention.py` holds the equation of attention, and `geometry.py` which keys each query attends to. `slots.py` says what users may
choose in attention, and what BERT does there; the other scores, positions and patterns are in one file each.

Doors:

    bert_config  the hyper-parameters, and the names of the heads
    heads        the encoder with its heads: the model that a run trains
    label_scale  the head of a regression that learns labels of any size
    bert         the encoder, and the initial weights of everything
    attention    the equation
    positions    sinusoids, rotations and distances
    decoder      a Transformer decoder with cross-attention
    layers       freeze, re-initialise or compile single layers
    recurrent    encoder and decoder of GRUs or LSTMs
    recorded     passes of training, recorded as CUDA graphs
"""
