"""A run: the only place where data, model, training and tasks meet.

Doors:

    directory      a run's folder: whose it is, whether it is done, a clean stop
    outputs        files that a user names to be written, and what may not be lost for them
    rules          which settings may change when a run is resumed
    start          the weights that a run begins with
    task_data      the splits of a task, as features; what share of the examples the model sees
    length_phases  which steps see sequences of which length
    pace           how many steps, and how long they take
    both_ends      holds the folder, says what is going to happen, and writes what a run leaves
    platform       what the last bits depend on beside the settings
    compiled       the layers of a model as compiled graphs
    depth          how deep each part of a model lies: to freeze, to draw anew, to scale learning rates
    state          model, optimizer and checkpoints
    trainer        `fit`: from the first step to the last, a generator of events
    objective      what is minimised, of a packed batch
    comparison     runs beside one another
    measure        losses on prepared text, and whether things fit together
    task_model     a model with its task
    answers        its predictions, in order, by any number of processes
    generating     texts that a decoder writes: greedily, by beam search, drawn
    predictor      what Python predicts with
    embedding      texts to vectors
    searching      a question to passages, in the order of an engine, of a reader or of both
    looking        what a model attends to, and what its prediction rests on
    memory         what a step needs, and a refusal of what is too large
"""
