"""The files of tasks, to examples."""
