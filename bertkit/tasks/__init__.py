"""Fine-tuning tasks by their shape: a file for each shape, from the rows of a file to scores.

The facts of each benchmark stand in `conf/task/`. A shape more is a file that ends with its SHAPE, and a line in config.

    config          settings of a task, and the names of the shapes
    shapes          the shape of a task; features of examples; metrics that fit
    task            Feature and Shape
    sequence        texts or pairs with a label or a number
    fill_mask       texts with [MASK]
    generation      texts that are made of texts
    files.conll     sentences and documents of words in columns
    files.questions questions for a library
    files.readers   files, the hub or an input -> examples
    files.rows      rows in memory as the lines of a file
    files.source    the examples of a split
    baseline        what guessing scores, and how far above it a score is
    files.writers   rows of predictions -> a file, as its ending says
    entities        running text -> entities, by a tagger
    batching        features -> packed micro-batches
    metrics         the official metrics
    review          scores by label, calibration, confusions, mistakes
    submission      the archive that the GLUE server takes
"""
