"""A model with its task: predictions, generated texts and vectors.

It asks `run` for the files of a run directory and for the objective. `run` never imports it.

    task_model  opens a model with its task
    answers     predictions for examples, in order, by any number of processes
    generating  texts from a decoder: greedy, beam search or sampling
    measure     losses on prepared text
    predictor   prediction from Python
    embedding   texts to vectors
    chunks      an input read, answered and written a chunk at a time
"""
