"""The heads on the encoder: logits, never losses.

Doors:

    head      a `Head`: its module, its shape, and what other formats call it; `head_of` finds one by its name
    built_in  the heads of BERT
"""
