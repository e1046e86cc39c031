"""The processes of a run: which one this is, and how they start and end.

Doors:

    launch_config  the settings `launch.*`
    world          the rank of this process, and how many there are
    launcher       starts and watches the processes of a host; only for the command line
    sweep          the runs of a sweep, one after another
"""
