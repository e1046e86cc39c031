"""What every room may use: batches, typed settings, errors, files, memory and hub models.

Doors:

    batch           the arrays of a batch, shared by data and training
    typed_settings  plain mappings to frozen dataclasses, with keys and types checked
    plugins         the user's own options, by slot and name
    errors          the errors that a user sees, with their exit codes
    files           durable files
    text_files      text, JSON and YAML, read with limits
    memory          how much memory this machine has
    hub_ids         names of hub models, and whether the hub can be reached
"""
