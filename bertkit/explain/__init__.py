"""Attention, attributions and alignments of one input, and their pages and pictures.

Doors:

    explaining         computes attention, attributions and alignments
    targets            which logit is explained, for each head
    aligning           which source tokens a model attends to while it writes
    look               the results as one value, and as JSON
    attention_page     attention.html
    alignment_picture  an alignment as SVG
    head_picture       attention as SVG and PNG
"""
