"""Operations on packed tensors, and fast kernels for them; needs only torch.

Doors:

    layout  the sequences of a packed batch, and how they become batched products
    linear  linear maps and dropout
    packed  linear maps of few rows, for generation
    sequences  attention with dropout, one sequence at a time, on a CPU
    elementwise  rotary positions and gated units in fewer passes over memory, on a CPU
    fast    which fast kernels are on, the choice for a processor, and attention of a whole batch by one kernel on CUDA
"""
