"""What is made: a prepared dataset; and the jobs of pretraining and fine-tuning, planned from settings, how they begin, and what they measure.

Doors:

    preparation        a dataset from text, or from its shards
    pretraining        the job of pretraining
    pretraining_plan   its plan, and the model with which it begins
    phases             the sequence length of every step of pretraining
    run_length         the number of steps, and how long they take
    finetuning         the job of fine-tuning
    finetuning_plan    its plan, and the model with which it begins
    together           the job of fine-tuning on several tasks at once, made of their jobs
    checks             what the user's files say before torch is imported
    plain              the training of a job without a directory
    task_data          the training and dev examples of a task, as features; truncation
"""
