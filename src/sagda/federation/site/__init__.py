"""A site's side of a federated run: its rows, its state, and its answers to letters.

Read `folder` first: it answers any letter. It uses `rows` (data), `cache` (the state on
disk), `site` (the phases of a round) and `measure` (evaluations). How letters travel is
in `sagda.federation.flower`.
"""
