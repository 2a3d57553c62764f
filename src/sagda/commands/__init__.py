"""The `sagda` command: one file per group of commands, as `sagda --help` shows them.

`main.py` lists the commands and `app.py` has what they share. Commands check flags and
print results; the work is done in the other rooms. They import JAX late, so that
`sagda --help` is fast.
"""
