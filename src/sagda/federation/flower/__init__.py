"""Flower as the transport: its apps and grid, the processes around it, and guards.

Everything that depends on Flower is in this folder. The rest of `sagda.federation`
uses only the interface in `sagda.federation.transport`, which `grid` implements.

Read `apps` first: it has the two functions that Flower calls, one at the server and one
at a site. `grid` and `messages` carry letters between them. `superlink` (for `sagda
serve`) and `supernode` (for `sagda join`) start Flower's processes. `nginx` filters the
requests from the network. `guards` adds checks inside Flower's processes.
"""
