"""What a run is, decided once, before a file is written: settings, starting model, micro-batches, steps and identity.

A plan is made from the settings as the user gave them. What is `auto` is resolved here, and nothing replaces settings later;
only `state.TrainingState` may take over choices, such as the micro-batches, from the checkpoint that a run resumes from.
"""
