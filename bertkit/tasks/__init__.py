"""Tasks by their shape: sequence, tagging, spans, choice. The facts of each benchmark stand in `conf/task/`."""
