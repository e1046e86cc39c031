"""A training run: the only place where data, model, training and tasks meet.

Doors:

    directory        what a run directory says of its run
    opening          is the run finished already? holds its directory, and announces what will happen
    outputs          files that a user names to be written
    resume_rules     which settings may change when a run is resumed
    start            the starting weights
    task_data        the splits of a task, as features, and how much of the examples the model sees
    length_phases    the sequence length of every step of pretraining
    run_length       how many steps, and how long they take
    memory_plan      how much memory a run needs
    state            model, optimizer and checkpoints
    reproducibility  the platform, on which the last bits of the weights depend
    trainer          `fit`: from the first step to the last, a generator of steps
    objective        the losses of a packed batch
    publishing       writes the model, metrics and report of a finished run
    comparison       runs beside one another
"""
