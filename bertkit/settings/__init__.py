"""The settings of each command: frozen dataclasses with types and rules; Hydra composes their values from `conf/`. Doors:

    command      what a command is, and what its settings can say of themselves
    reading.assignments  settings and the values that a user gives them
    reading.words  the short form of a command: a file, --text and --label
    reading.overrides  words of the command line to assignments, by Hydra's grammar
    reading.values  values from Python to assignments
    reading.compose  YAML files and assignments to a plain mapping, by Hydra
    reading.names  the names of settings, and their synonyms
    reading.hints  what is wrong with an unknown name, and what the user may mean
    prepare   a corpus and a tokenizer
    pretrain  a pretraining run, and what fine-tuning shares with it
    finetune  a fine-tuning run
    glue      fine-tuning runs on several tasks with several seeds
    inputs    what predict, embed, view and search share: a model and its inputs
    predict   a model and its inputs
    embed     an encoder and texts
    view      a model and an input
    search    a library and questions
    evaluate  a model and a labelled split or a prepared dataset
    compare   several runs
    serve     models and an address
    index     a corpus and a library of passages
    export    a model and an output directory
    verify    a model and a certificate

Nothing here imports torch, so a misspelt key is refused at once.
"""
