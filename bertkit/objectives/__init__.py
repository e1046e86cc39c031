"""What training minimises: the losses of a packed batch, and the objectives that users may write.

Doors:

    losses     the losses and outputs of a packed batch; its tensors on the device
    objective  an `Objective`: what becomes of a drawn batch, its loss terms and their counts
"""
