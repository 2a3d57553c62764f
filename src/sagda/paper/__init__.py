"""Reproduction of the SAGDA paper: its figures, claims, rates and theorems.

Start with `reproduce`: `reproduce_figures` and `reproduce_speedup` do all the work. The
files `figures/*.toml` describe the figures. This room is not for users' own runs, which
are in `sagda.runs`. No other room needs this one, except `commands`.
"""
