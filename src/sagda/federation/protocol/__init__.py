"""The rules R1 to R13 that keep every control variate exact, whatever fails.

An algorithm with memories gives each member a control variate v_i. The server keeps the
table of all v_i with V = sum of v_i over all M members, and each site keeps a cache of
its own v_i. A *version* names one value of a v_i. None names the first value, which
both sides can compute. A *ticket* (incarnation, counter) names one instruction.

The server (`protocol.server`, `server.rounds`, `server.store`):

R1.  Each start of the server takes a larger incarnation, and makes it durable before it
     issues the first ticket.
R2.  A member has at most one live ticket. A new ticket retires the old one. A member
     whose reply was accepted gets no new ticket in the same exchange.
R3.  The server accepts a reply only if its run, configuration and epoch are the
     server's, its ticket is the live one, no reply was accepted before, its base is the
     version in the table, and its arrays pass validation.
R4.  A round with fewer answers than `min_clients` is abandoned. It changes nothing, and
     is repeated with new tickets.
R5.  A round is committed at once: point, members, versions and counts become durable by
     one atomic replacement of the manifest. Sums are taken in double precision and in
     the order of names, so that the order of arrival changes no bit.
R6.  The server tells a member only the version that is durable, and starts the next
     round only after the commit.
R7.  A site whose cache does not match answers with a mismatch. The server then sends
     v_i itself with the next ticket.
R8.  The server's table is the authority. A server that is restored from an older backup
     is consistent without further steps, because R7 refreshes the sites. Resetting all
     variates opens a new epoch, in which every v_i has its first value.

The site (`protocol.client`, `site.cache`):

R9.  A site acts on a ticket only if it is larger than every ticket before. For the
     ticket that it answered last, it sends the stored reply again. It ignores others.
R10. If the server has accepted nothing (version None), the site starts from the first
     value.
R11. If the server names the pending version, the site promotes it. If the server names
     the committed version, the site drops the pending one. Otherwise the site answers
     with a mismatch. Only R7, R10 and R11 change the committed value.
R12. The site makes the new value durable as pending before it answers.
R13. A member leaves in one commit: the server removes v_i from the table, so that V and
     M both shrink.

The machines in `protocol.server` and `protocol.client` are pure: clock, files, network
and random numbers are passed in. `tests/federation/protocol` runs them under random
faults, and shows that breaking a rule is caught. Next: `protocol.messages` for the
fields, `protocol.letters` for what travels, `protocol.wire` for arrays as bytes.
"""
