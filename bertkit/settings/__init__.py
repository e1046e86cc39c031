"""What each command accepts: its settings, frozen and typed; how Hydra composes them; and what `--help` says of them.

    help       the commands, and what each needs and gives
    compose    YAML and overrides to a plain mapping: Hydra's only home
    hints      what other tools call a setting
    yaml_files YAML that anybody may have written
    replay     the settings of an earlier run
    prepare    a corpus and a tokenizer
    pretrain   a pretraining run
    finetune   a fine-tuning run
    glue       fine-tuning runs of several tasks and seeds
    predict    a model and its inputs
    embed      an encoder and texts
    evaluate   a model and a split
    compare    several runs
    view       a model and one input
    serve      models and an address
    index      a corpus and a library
    search     a library, a reader and questions
    export     a model and a directory to make
    verify     a model and a certificate

The values stand in `conf/`; here are the types and the rules that span several groups. Nothing here imports torch, so
that a misspelt key is refused at once.
"""
