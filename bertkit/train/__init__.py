"""Training of any module, with any batches and any loss; nothing here depends on BERT.

Doors:

    train_config       the settings
    losses             loss terms: a sum and a count
    loss_scale         the factor of the loss in float16
    optimizer          AdamW, LAMB, clipping
    schedule           the learning rate of a step
    loop               the training step; evaluation of the losses
    step_report        the result of a step
    log                metrics.jsonl; trackers such as tensorboard and wandb
    micro_batches      how a batch is cut, and which process takes which micro-batches
    gradient_sum       the sum of their gradients
    drawn_ahead        batches drawn in a thread
    processes          the device of a process, and collectives
    accelerator        the process group of a training, by Accelerate
    checkpoint_files   the checkpoints of a run on disk: the newest valid one, and damage
    checkpoint         durable saves and strict loads
    checkpoint_writer  saves in the background; the best checkpoint
"""
