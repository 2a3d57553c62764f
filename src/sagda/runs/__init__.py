"""A configuration and its run folder: from flags and TOML files to results on disk.

Read `config.py` first, then `experiment.py` (the objects that a configuration
describes), `execution.py` (run them into a folder) and `output.py` (what a finished run
leaves). `folder.py` lists the files of a run folder. What a person sees is in
`sagda.report`.
"""
