"""BERT over packed tokens, which other rooms hand over with a layout. `attention.py` holds the equation; imports only torch.

Doors:

    config       the hyper-parameters, and the names of the heads
    heads        the model that a run trains, and its door for padded batches
    bert         the encoder, and the initial weights of everything
    layout       where the sequences of a packed batch lie
    depth        how deep each part lies: to freeze, to draw anew, to scale learning rates
    compiled     the layers as compiled graphs
    linear       linear maps and dropout, whose rate is measured
"""
