"""The evaluation of the SAGDA paper, run again: figures, claims, slopes and theorems.

Two functions do everything: `reproduce_figures` and `reproduce_speedup`, in
`reproduce`. The figures are the files `figures/*.toml`. Users' own runs are in
`sagda.runs`; nothing else in the library needs this room.
"""
