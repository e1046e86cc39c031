"""BERT over packed tokens, which other rooms hand over with a layout. `attention.py` holds the equation; imports only torch.

Other scores, positions and patterns of attention are a file each, and meet in `slots.py`.

Doors:

    bert_config  the hyper-parameters, and the names of the heads
    heads        the model that a run trains
    bert         the encoder, and the initial weights of everything
    attention    the equation
    slots        attention by any score, positions and pattern
    decoder      attention to a source: what writes a text
    layer_depth  how deep each parameter lies: to freeze, to draw anew, to scale learning rates
    compiled     the layers as compiled graphs
    recurrent    the same before there were Transformers, by GRUs
"""
