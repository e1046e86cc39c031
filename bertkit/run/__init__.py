"""A training run: the only place where data, model, training and tasks meet.

Doors:

    directory        a run's folder: whose it is, whether it is done, a clean stop
    outputs          files that a user names to be written, and what may not be lost for them
    rules            which settings may change when a run is resumed
    compatibility    whether model, tokenizer, dataset and settings fit together
    start            the weights that a run begins with
    task_data        the splits of a task, as features; what share of the examples the model sees
    length_phases    which steps see sequences of which length
    run_length       how many steps, and how long they take
    publishing       holds the folder, says what is going to happen, and writes what a run leaves
    reproducibility  what the last bits depend on beside the settings
    state            model, optimizer and checkpoints
    trainer          `fit`: from the first step to the last, a generator of events
    objective        what is minimised, of a packed batch
    comparison       runs beside one another
    memory_plan      what a step needs, and a refusal of what is too large
"""
