"""From files to examples, for training and prediction alike: numbered lines -> rows -> examples, as they are read.

readers   files, the hub or an input -> examples
rows      rows in memory -> the lines of a file
writers   rows of predictions -> a file
source    the examples of a split, and warnings about them
tables    rows by column, for the shapes
conll     sentences of words and tags, and the chunks that tags mark, for the shapes
labels    labels and ids, checked, for the shapes
"""
