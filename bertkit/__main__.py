"""`python -m bertkit`."""

import sys

if __name__ == "__main__":
    if (
        not sys.flags.safe_path
    ):  # then `-m` has put the current directory first, with possible modules of the same names
        here = sys.path.pop(0)
        if __file__ == f"{here}/bertkit/__main__.py":
            sys.path.append(here)
    from bertkit.cli import main

    main()
