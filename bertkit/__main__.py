"""`python -m bertkit`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:  # then `-m` puts the current directory first, and whatever lies there would be imported
        here = sys.path.pop(0)
        if __file__ == f"{here}/bertkit/__main__.py":
            sys.path.append(here)
    from bertkit.cli import main

    main()
