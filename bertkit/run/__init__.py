"""Runs: a job in a directory, with a lock, an identity, checkpoints, a log and a report.

Doors:

    job              what is trained: a `Job`
    trainer          trains a job in its directory: `run_steps`
    directory        the metadata files of a run directory
    finished         recognises a finished run before torch is imported
    opening          opens and locks the directory of a run
    outputs          files named by the user, such as output=
    resume_rules     which settings may change when a run is resumed (`opening.check` refuses the others)
    start            the starting model of a run
    start_weights    the hashes of its files
    fitting          checks that a model fits its tokenizer, the data and the settings
    choices          the automatic choices of a run
    memory_plan      how much memory a run needs
    state            model, optimizer and checkpoints
    reproducibility  threads, torch version and device, which affect the last bits of the weights
    publishing       writes the model, metrics and report of a finished run
    comparison       compares runs
"""
