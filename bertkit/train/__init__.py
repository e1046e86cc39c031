"""Training: knows a module, batches and a loss; has never heard of BERT.

Doors:

    train_config       the settings
    losses             loss terms: a sum and a count
    optimizer          AdamW, LAMB, clipping
    schedule           the learning rate of a step
    loop               the training step
    evaluation         losses and accuracies without training
    gradient_sums      the sum of the gradients of a global batch
    step_report        what a step did
    log                metrics.jsonl; its rows for tensorboard, wandb and others
    micro_batches      which process takes which micro-batches
    processes          devices, processes and what they say to one another
    checkpoint         durable saves and strict loads
    checkpoint_writer  when to save, and which checkpoint is the best
"""
