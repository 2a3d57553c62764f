"""Show results to a person: HTML reports, charts, tables and terminal output.

A report is a list of blocks (`blocks.py`) in an HTML template (`templates/`).
`charts.py` draws, `tables.py` makes cells, and the `..._page.py` modules put reports
together. The files that reports are made from are written by `sagda.runs`.
"""
