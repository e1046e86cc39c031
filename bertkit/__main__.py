"""`python -m bertkit`, and the script `bertkit`."""

import gc
import os
import signal
import sys

from bertkit.base.errors import INTERRUPTED, INTERRUPTED_CODE


def main() -> None:
    """Run a command; Ctrl-C or SIGTERM during the imports ends the process with a line, without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: (os.write(2, f"error: {INTERRUPTED}\n".encode()), os._exit(INTERRUPTED_CODE)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a sweep starts its runs with it blocked
    gc.disable()  # while the settings are read: looking for garbage takes a twelfth of the start
    from bertkit import cli

    cli.main()


if __name__ == "__main__":
    if not sys.flags.safe_path:  # `-m` has put the current directory first, and its modules could replace others
        here = sys.path.pop(0)
        if __file__ == f"{here}/bertkit/__main__.py":
            sys.path.append(here)
    main()
