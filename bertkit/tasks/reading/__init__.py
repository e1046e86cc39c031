"""The one road from files to examples, for training and prediction alike: numbered lines -> rows -> examples, as they come.

readers   files, the hub or an input -> examples
rows      rows in memory as the lines of a file
writers   rows of predictions -> a file, as its ending says
source    the examples of a split, and what looks wrong in them
tables    rows by column, for the shapes
conll     sentences of words and tags, and the chunks that tags mark, for the shapes
labels    names of labels and ids of examples, checked, for the shapes
"""
