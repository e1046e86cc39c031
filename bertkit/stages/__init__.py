"""One file per command; its function `run` takes the settings and does the work."""
