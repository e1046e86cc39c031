"""The settings of each command: frozen dataclasses with types and rules; Hydra composes their values from `conf/`. Doors:

    command      what a command is, and what its settings can say of themselves
    reading.assignments  settings and the values that a user gives them
    reading.words  the short form of a command: a file, --text and --label
    reading.overrides  words of the command line to assignments, by Hydra's grammar
    reading.values  values from Python to assignments
    reading.compose  YAML files and assignments to a plain mapping, by Hydra
    reading.names  the names of settings
    reading.synonyms  words of other tools, and what they mean here
    reading.answers  what to set instead of words that are no setting here
    reading.hints  what is wrong with an unknown name, and what the user may mean
    inputs    what predict, embed, view and search share: a model and its inputs

and, for each command, a module with its name: its settings, and its record.

Nothing here imports torch, so a misspelt key is refused at once.
"""
