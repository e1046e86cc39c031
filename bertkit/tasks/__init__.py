"""Fine-tuning tasks by their shape: a file for each shape, from the rows of a file to scores.

The facts of each benchmark stand in `conf/task/`. A shape more is a file that ends with its SHAPE, and a line in task_config.

    task_config             settings of a task, and the names of the shapes
    shapes                  the shape of a task; features of examples; metrics that fit
    task                    Feature and Shape
    sequence                texts or pairs with a label or a number
    fill_mask               texts with [MASK]
    generation              texts that are made of texts
    entities                running text -> entities, by a tagger
    batching                features -> packed micro-batches
    reading.conll           sentences and documents of words in columns
    reading.formats         which format a file has
    reading.readers         files, the hub or an input -> examples
    reading.rows            rows in memory as the lines of a file
    reading.source          the examples of a split
    reading.tables          lines -> rows
    reading.writers         rows of predictions -> a file, as its ending says
    scoring.baseline        what guessing scores, and how far above it a score is
    scoring.metric_classes  the scores of SQuAD, as its scripts give them
    scoring.metrics         the official metrics
    scoring.review          scores by label, calibration, confusions, mistakes
    scoring.submission      the archive that the GLUE server takes
    scoring.suite           the mean over seeds and the average over tasks
"""
