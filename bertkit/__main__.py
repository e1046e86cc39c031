"""`python -m bertkit`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:  # `-m` has put the current directory first, and its modules could replace others
        here = sys.path.pop(0)
        if __file__ == f"{here}/bertkit/__main__.py":
            sys.path.append(here)
    from bertkit.cli import main

    main()
