"""Fine-tuning tasks by shape: a file for each shape, from the rows of a file to scores.

The facts of each benchmark are in `conf/task/`. A new shape is a file that ends with its SHAPE, and a line in task_config.

    task_config         settings of a task, and the names of the shapes
    shapes              the shape of a task; features of examples; metrics that fit
    task                Feature and Shape
    sequence            texts or pairs with a label, several labels or a number
    fill_mask           texts with [MASK]
    generation          a text from a text
    entities            running text -> entities, with a tagger
    batching            features -> packed micro-batches
    reading.conll       sentences and documents of words in columns
    reading.formats     the format of a file
    reading.readers     files, the hub or an input -> examples
    reading.source      rows of a file or in memory, and the examples of a split
    reading.tables      lines -> rows
    reading.writers     rows of predictions -> a file
    scoring.baseline    the scores of a constant prediction, and how far a score is above them
    scoring.squad       SQuAD's scores, as in the official scripts
    scoring.metrics     the official metrics
    scoring.review      scores by label, calibration, confusions, mistakes
    scoring.benchmark   GLUE: the mean over seeds, the average over tasks, the archive for the server
"""
