"""How packed tensors are computed, and fast: what the pages of `model/` take for granted; imports only torch.

Doors:

    layout  where the sequences of a packed batch lie
    linear  linear maps and dropout
    varlen  attention of a whole batch by one kernel, on CUDA
    fast    the fast ways: which there are, and which a processor takes
"""
