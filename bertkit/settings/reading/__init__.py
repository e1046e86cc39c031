"""What a user sets, on the command line or from Python, to a plain mapping: words or values -> assignments -> `conf/` with them."""
