"""How packed tensors are computed, and computed fast; imports only torch.

Doors:

    layout  the sequences of a packed batch
    linear  linear maps and dropout
    varlen  attention of a whole batch by one kernel, on CUDA
    fast    the fast ways, and the choice for a processor
"""
