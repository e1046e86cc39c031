"""The settings of each command: frozen dataclasses with types and rules; Hydra composes their values from `conf/`. Doors:

    names     the names of settings: synonyms, and hints for unknown names
    words     settings from Python, and the short form of finetune, predict and embed
    compose   YAML files and overrides to a plain mapping: Hydra's only home
    prepare   a corpus and a tokenizer
    pretrain  a pretraining run, and what fine-tuning shares with it
    finetune  a fine-tuning run
    glue      fine-tuning runs on several tasks with several seeds
    inputs    predict, embed, view and search: a model and its inputs
    evaluate  a model and a labelled split or a prepared dataset
    compare   several runs
    serve     models and an address
    index     a corpus and a library of passages
    export    a model and an output directory
    verify    a model and a certificate

Nothing here imports torch, so a misspelt key is refused at once.
"""
