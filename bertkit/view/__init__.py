"""What people look at: pages, tables, and the lines that a command prints.

A page needs no other file and no network.

    page        a page of a template in pages/, and tables for a page or a terminal
    charts      lines as SVG
    report      report.html of a run
    compare     compare.html of several runs
    suite       glue.md
    look        what there is to see of a model and one input; its numbers as JSON
    attention   the page of it
    alignment   what is looked at while a text is written: of the page, and as SVG
    serve_page  the page of a server
    head        pictures of it as SVG
    console     the lines of a training run
    progress    a bar with the time left
"""
