"""sentence-transformers: its folders and cross-encoders, without the package.

folder   how a text becomes a vector, beyond the encoder: pooling, prompts, similarity
steps    the modules after the pooling, which change a vector
layout   the files that bertkit writes for it
"""
