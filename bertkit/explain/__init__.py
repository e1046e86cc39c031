"""Attention, attributions and alignments of one input, and their pages and pictures.

Doors:

    explain       computes an explanation of one input: attention, rollout, alignment
    attributions  which tokens a prediction rests on, by integrated gradients; the logit that is explained
    explanation   the results as one value, and as JSON
    pictures      attention and alignments as a page, SVG and PNG
"""
