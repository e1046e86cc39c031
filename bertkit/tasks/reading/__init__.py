"""Reading of examples, for training and for prediction: lines -> rows -> examples, one after another.

readers   opens files, datasets of the hub, and inputs of `predict`
formats   detects the format of a file
tables    parses lines into rows with named columns
cells     rows with too few cells: an error, skipped, or filled up
json_records  JSON, JSON lines and SQuAD's JSON as records
conll     parses CoNLL files; tagging schemes, and the chunks that tags mark
labels    checks labels and ids
reading   a table from which a task reads its examples
rows      rows from Python: mappings, `datasets` and pandas data frames
source    the examples of a split
held_out  the examples that `dev_share` holds out
near_duplicates  texts of which one contains most of the other
writers   the output formats of predictions and vectors
"""
