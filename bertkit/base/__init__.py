"""What every room may use: batches, typed settings, errors, files, memory and the names of hub models.

Doors:

    batch           the arrays of a batch, shared by data and training
    typed_settings  plain mappings to frozen dataclasses, with every key and type checked
    errors          the errors that a user sees, with their exit codes
    files           durable files
    text_files      text files and archives, read in lines with limits
    memory          how much memory this machine has
    hub_ids         names of models on the hub, and whether the hub can be reached
"""
