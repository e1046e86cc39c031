"""Fine-tuning tasks, a class for each kind of task: from the rows of a file to predictions and scores.

A kind of task is a kind of input and output, such as a text with a label. `conf/task/` has the settings of each benchmark.
To add a kind, write a file with its class, and add a line to `task_config.KINDS`, which imports those
without a door: tagging.py (with entities.py and words.py), choice.py, minimal_pairs.py and spans/. Doors:

    task_config         settings of a task, and the names of the kinds
    task                `Task`: what `predict` needs of a task
    trainable           `TrainableTask` and `HeadTask`: labels and scores; `task_of`, the task of some settings
    feature             `Feature`: a sequence of tokens for the model
    sequence            a text or a pair of texts
    label_kinds         what is predicted of them: one label, several labels or a number
    fill_mask           a text with [MASK]: the most probable tokens
    continuation        a text: what a causal model writes after it
    generation          a text in, a text out
    batching            packs features into micro-batches
    reading.conll       reads words and tags in columns; chunks and their tagging schemes
    reading.formats     detects the format of a file
    reading.held_out    the examples that `dev_share` holds out
    reading.labels      checks labels and ids; lists in a cell
    reading.kinds       infers the task of a training file
    reading.readers     reads files, datasets of the hub, and inputs of `predict` as examples
    reading.rows        rows from Python
    reading.cells       rows with too few cells
    reading.source      the examples of a split, and what their reading found
    reading.tables      parses lines into rows
    reading.training_data  the training and dev examples, read once
    reading.writers     the output formats of predictions and vectors
    scoring.sampling    95 % intervals of scores
    scoring.baseline    the scores of a constant prediction, and whether a model is better
    scoring.evaluation  what `evaluate` says of scored predictions
    scoring.squad       the scores of the official SQuAD scripts
    scoring.metrics     all other official metrics
    scoring.review      scores by label, calibration, confusions and mistakes
    scoring.calibration  the temperature of probabilities, and their expected calibration error
    scoring.benchmark   GLUE: mean over seeds, average over tasks, and the archive for its server
"""
