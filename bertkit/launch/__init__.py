"""The processes of a run: which one this is, and who starts them and ends them.

Doors:

    launch_config  the settings `launch.*`
    world          which of a run's processes this is
    launcher       starts the processes of a host and watches them; the command line's alone
    sweep          runs the combinations of a sweep one after another
"""
