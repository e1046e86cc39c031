"""Pages, tables, and the lines that a command prints.

A page needs no other file and no network.

    page        pages from the templates in pages/, and tables
    charts      line charts as SVG
    report      report.html of a run
    compare     compare.html of several runs
    suite       glue.md
    console     the lines of a training run
    progress    a progress bar
"""
