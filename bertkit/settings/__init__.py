"""What each command accepts: frozen dataclasses with types and rules, and how Hydra composes their values from `conf/`.

    common            settings that several commands share
    compose           YAML and overrides to a plain mapping: Hydra's only home
    overrides.hints   synonyms, and names from other tools
    overrides.replay  the settings of an earlier run
    prepare           a corpus and a tokenizer
    pretrain          a pretraining run
    finetune          a fine-tuning run
    glue              fine-tuning runs on several tasks with several seeds
    predict           a model and its inputs
    embed             an encoder and texts
    evaluate          a model and a split
    compare           several runs
    view              a model and one input
    serve             models and an address
    index             a corpus and a library
    search            a library, a reader and questions
    export            a model and an output directory
    verify            a model and a certificate

Nothing here imports torch, so a misspelt key is refused at once.
"""
