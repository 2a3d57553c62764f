"""Rounds over clients that are elsewhere: the same algorithms, by letters.

`Site` is a client's part and `Coordinator` the server's; `Conductor` leads a whole run.
None of them knows how letters travel: `sagda.federation.flower` carries them.
"""
