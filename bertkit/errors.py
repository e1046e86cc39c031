"""Errors that a user can act on: one line, and the exit code that scripts rely on."""


class BertkitError(Exception):
    """A failure with a message for the user: what was wrong, where, what was expected, what to do."""

    exit_code = 1


class ParityError(BertkitError):
    """A model is not what its certificate says."""


class InputError(BertkitError):
    """Bad input or configuration; nothing was changed."""

    exit_code = 2


class LockedError(BertkitError):
    """The output directory is in use by a live run."""

    exit_code = 3


class StorageError(BertkitError):
    """A disk is full, read-only or failing."""

    exit_code = 4


class NumericsError(BertkitError):
    """A loss or gradient stopped being finite."""

    exit_code = 5


class PeerError(BertkitError):
    """Another process of the run died or hangs; all of them were ended."""

    exit_code = 6


class StoppedError(BertkitError):
    """The run was asked to stop; its checkpoint is saved and the same command resumes it."""

    exit_code = 75
