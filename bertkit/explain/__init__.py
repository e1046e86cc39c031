"""Attention, attributions and alignments of one input, and their pages and pictures.

Doors:

    explain         computes an explanation of one input: attention, rollout, alignment
    attributions    which tokens a prediction rests on, by integrated gradients
    targets         which logit is explained, for every head
    explanation     the results as one value, and as JSON
    attention_page  attention.html
    pictures        attention and alignments as SVG and PNG
"""
