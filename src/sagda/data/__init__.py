"""Tables of rows, federations of clients, and how files become either.

Start with `federation.py` for the two types, `datasets.py` for `sagda.load`, and
`partition.py` for splits over clients.
"""
