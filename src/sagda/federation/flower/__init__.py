"""Flower as the transport: its apps and grid, the processes around it, and guards.

Everything that depends on Flower is in this folder. The rest of `sagda.federation`
knows only the protocol in `sagda.federation.transport`, which `grid` implements.

Read `apps` first: Flower enters there, at the server and at a site. `grid` and
`messages` carry letters between the two. `superlink` and `supernode` are `sagda serve`
and `sagda join`: they start Flower's processes, with `nginx` in front and the checks of
`guards` inside.
"""
