"""Explanations of one input: attention, attributions and alignments, and their pages and pictures.

Doors:

    request       reads the input to explain, and refuses a picture that the model cannot give
    explain       computes an `Explanation` of one input, and writes it as JSON
    attributions  computes how much each token contributes to a prediction, by integrated gradients
    heads         computes how much each attention head contributes to a prediction, and where it looks
    positions     shows what positions say about the distance between tokens
    pictures      draws attention and alignments as a page, SVG and PNG
"""
