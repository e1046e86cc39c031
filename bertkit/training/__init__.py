"""Training from Python, step by step: a job and `fit`.

A job is what is trained: a model, its examples, its objective, and how it is measured. `fit` trains it: no file, no output, no signal
handler. With a directory it is a run, as those of the commands: checkpoints, a log and a report; the same call resumes it.

Doors:

    data_and_model   a dataset, and a model with initial weights
    pretraining      the job of pretraining, with Python's arguments
    finetuning       the job of fine-tuning, with Python's arguments
    fit              the steps of a job
"""
