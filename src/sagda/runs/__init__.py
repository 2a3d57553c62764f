"""Configurations and run folders: from flags and TOML files to results on disk.

Read `config.py` first. Then read `experiment.py` (build the objects of a
configuration), `execution.py` (run them into a folder) and `output.py` (write the
results). `folder.py` lists the files of a run folder. Tables, charts and reports are in
`sagda.report`.
"""
