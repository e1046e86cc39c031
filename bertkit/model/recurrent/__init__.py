"""A recurrent encoder, and a recurrent decoder with attention to it: neural translation before the Transformer.

All layers are those of cells.py: by default GRUs as torch and cuDNN compute them, with the reset gate after the matrix, and not
before it as in the papers.
"""
