"""BERT over packed tokens with a layout. `attention.py` implements scaled dot-product attention; torch is the only
external dependency.

Alternative attention scores, positions and patterns have one file each; `slots.py` combines them, and `geometry.py`
determines which keys each query attends to.

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
