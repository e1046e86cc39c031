"""Inference with a model and its task: predictions, losses, generated texts and vectors. `run` never imports it.

Doors:

    task_model  loading a model with its task
    forward     predictions and losses, in one process or in all
    held_out    losses on prepared text, and the controls that tell what was learned from context
    held_out_losses  the losses of an objective on prepared text
    pseudo_perplexity  the perplexity of a masked LM that papers quote
    text_losses losses on the text of a prepared dataset
    generating  text generation with a decoder: greedy, beam search or sampling
    samples     what a pretrained model predicts for held-out text, for its report
    predictor   prediction from Python
    embedding   texts to vectors
    frozen      the vectors of the model that a fine-tuning starts from
    chunks      reading an input, and writing the results, a chunk at a time
"""
