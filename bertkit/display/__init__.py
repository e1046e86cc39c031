"""Reports, tables, charts, and the lines that a command prints.

A page needs no other file and no network. Doors:

    page        fills in the templates of pages/; tables
    charts      draws line charts, calibration and scatter plots as SVG
    report      report.html for a run, compare.html for several runs, glue.md for GLUE
    console     formats the lines of a training run; the progress bar
"""
