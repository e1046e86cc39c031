"""What people look at: pages, tables, and the lines that a command prints.

A page needs no other file and no network.

    page        a page of a template in pages/, and tables for a page or a terminal
    charts      lines as SVG
    report      report.html of a run
    compare     compare.html of several runs
    suite       glue.md
    serve_page  the page of a server
    console     the lines of a training run
    progress    a bar with the time left
"""
