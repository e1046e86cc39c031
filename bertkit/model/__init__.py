"""BERT over packed tokens with a layout. `attention.py` holds the equation; this room imports only torch.

Other scores, positions and patterns of attention have a file each, and meet in `slots.py`; `geometry.py` says which keys a
query sees.

Doors:

    bert_config  the hyper-parameters, and the names of the heads
    heads        the model that a run trains
    bert         the encoder, and the initial weights of everything
    attention    the equation
    slots        other scores and positions than those of BERT
    decoder      a Transformer decoder with cross-attention
    layer_depth  the depth of each parameter: to freeze, to re-initialise, to scale learning rates
    compiled     the layers as compiled graphs
    recurrent    encoder and decoders of GRUs
"""
