"""The processes of a run: their ranks, and how they are started and stopped.

Doors:

    launch_config  the settings `launch.*`
    world          the rank of this process, and the number of processes
    launcher       starts the worker processes of a host; only for the command line
    sweep          runs every combination of a sweep, one after another
"""
