"""Tables of rows, federations of clients, and the readers of data files.

Start with `federation.py`, which defines both types. Then read `datasets.py` for
`sagda.load`, and `partition.py` for ways to split a table over clients. Losses are not
here: see `sagda.problems`.
"""
