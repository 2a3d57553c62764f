"""Keys and certificates: who may take part, and who signed an answer.

Read `site_keys` first: it has the keys of sites, the register of admitted sites, and
the seals on answers. `authority` has the keys of the coordinator, who runs the server.
"""
