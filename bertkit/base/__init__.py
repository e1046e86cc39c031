"""Shared by all rooms: batches, typed settings, errors, files, memory and hub models.

Doors:

    batch           the arrays of a batch, shared by data and training
    intervals       the valid values of numbers in settings
    typed_settings  converts plain mappings to frozen dataclasses, and checks keys and types
    annotations     the forms of annotation that settings may have, each with its conversion
    problems        problems with settings, each with the place of its value
    plugins         the registry of options, built in and the user's own
    renamed         settings that had other names in earlier versions
    errors          errors with exit codes; safe output to the terminal
    files           durable writes, locks
    tensor_files    safetensors, with a checksum
    blocks          decompresses files; the endings of their names
    text_files      reads text, JSON and YAML, with size limits
    json_stream     reads the values of a JSON file one after another
    memory          the memory of this machine
    processors      its processors: how many there are, what they lack, and whether others use them
    hub_ids         names of hub models, and whether the hub can be reached
"""
