"""Overrides as people write them: synonyms, names from other tools, and the settings of an earlier run."""
