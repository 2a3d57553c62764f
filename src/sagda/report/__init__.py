"""Show results to a person: HTML reports, charts, tables and terminal output.

A report is a list of blocks (`blocks.py`) in an HTML template (`templates/`).
`charts.py` makes charts, `tables.py` makes tables, and the `..._page.py` modules put
reports together. This room stores no results: `sagda.runs` writes the files that it
reads.
"""
