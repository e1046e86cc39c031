"""Pages, tables, and the lines that a command prints.

A page needs no other file and no network.

    page        pages from the templates in pages/, and tables
    charts      line charts as SVG
    report      report.html of a run, compare.html of several runs, glue.md of a suite
    console     the lines of a training run, and the progress bar
"""
