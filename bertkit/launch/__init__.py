"""The processes of a run: which one this is, who starts them, and who notices that one of them hangs.

Doors:

    config     the settings `launch.*`
    world      which of a run's processes this is
    watch      who listens to this process
    launcher   starts the processes of a host and watches them; the command line's alone
    sweep      runs the combinations of a sweep one after another
"""
