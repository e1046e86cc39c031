"""Training: knows a module, batches and a loss; has never heard of BERT.

Doors:

    config       the settings
    losses       loss terms: a sum and a count
    schedule     the learning rate of a step
    optimizer    AdamW, LAMB, clipping
    loop         the training step; evaluation
    step_report  what a step did
    shares       which process takes which micro-batches
    processes    devices, processes and what they say to one another
    checkpoint   durable saves and strict loads
    log          metrics.jsonl
"""
