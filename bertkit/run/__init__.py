"""Training runs: combines data, model, training and tasks, which do not import one another.

Doors:

    directory        the metadata files of a run directory
    finished         recognises a finished run before torch is imported
    opening          opens and locks the directory of a run
    outputs          files named by the user, such as output=
    resume_rules     which settings may change when a run is resumed (`opening.check` refuses the others)
    starts.start     the starting model of a run
    starts.pretraining  how pretraining begins
    starts.finetuning   how fine-tuning begins
    starts.fitting   checks that a model fits its tokenizer, the data and the settings
    task_data        the training and dev examples of a task, as features; truncation
    length_phases    the sequence length of every step of pretraining
    run_length       the number of steps, and how long they take
    memory_plan      how much memory a run needs
    plans.pretraining  what a pretraining run is, decided once, before a file is written
    plans.finetuning   what a fine-tuning run is
    state            model, optimizer and checkpoints
    reproducibility  threads, torch version and device, which affect the last bits of the weights
    trainer          a `Trainer`: the reports of the steps, their log rows and checkpoints
    publishing       writes the model, metrics and report of a finished run
    comparison       compares runs
"""
