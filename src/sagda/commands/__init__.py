"""The `sagda` command: one file per group of commands in `sagda --help`.

Read `main.py` first: it lists the commands. `app.py` has the code that they share.
Commands check flags and print results. Other packages do the work. Commands import JAX
late, so that `sagda --help` is fast.
"""
