"""The rules R1 to R13 that keep every control variate exact, whatever fails.

Member i of a run has a control variate v_i. The server stores the table of all v_i, and
the site of member i stores a cache of its v_i. V is the sum of v_i over all M members.

These words are used in the rules (`sagda.federation` explains more):

    version: the name of one value of v_i. None names the first value, which the server
        and the site can both compute.
    ticket: the pair (incarnation, counter), which names one instruction of the server.
    incarnation: the number of a start of the server.
    live: the newest ticket of a member is live until the exchange ends.
    base: the version of v_i from which a site computed its reply.
    accepted: the server will use the reply, and its new version of v_i, if the round is
        committed.
    pending: the site has computed this version, and does not know if it was accepted.
    committed: the newest version in a site's cache that the server accepted.
    durable: on disk, so that a crash does not lose it.
    epoch: the number of times that all v_i were reset to their first value.

The server (`protocol.server`, `server.rounds`, `server.store`):

R1.  Each start of the server takes a larger incarnation. The server makes it durable
     before it issues the first ticket.
R2.  A member has at most one live ticket. A new ticket replaces the old one. A member
     whose reply was accepted gets no new ticket in the same exchange.
R3.  The server accepts a reply only if all of this is true. Its run, configuration and
     epoch are those of the server. Its ticket is live. The member has no accepted reply
     in this exchange. Its base is the version in the table. Its arrays are valid.
R4.  A round with fewer answers than `min_clients` is abandoned. It changes nothing, and
     is repeated with new tickets.
R5.  A round is committed in one step: point, members, versions and counts become
     durable when the manifest is replaced. Sums are taken in double precision and in
     the order of names, so that the order of arrival does not change the result.
R6.  The server tells a member only a version that is durable. It starts the next round
     only after the commit.
R7.  A site whose cache does not match answers with a mismatch. The server then sends
     v_i itself with the next ticket.
R8.  If the table and a cache differ, the table is right. Therefore a server that is
     restored from an old backup needs no further steps, because R7 corrects the sites.
     Resetting all v_i begins a new epoch, in which every v_i has its first value.

The site (`protocol.client`, `site.cache`):

R9.  A site acts on a ticket only if it is larger than every ticket before. For the
     ticket that it answered last, it sends the stored reply again. It ignores all other
     tickets.
R10. If the server has accepted nothing (version None), the site starts from the first
     value of v_i.
R11. If the server names the pending version, this version becomes the committed one. If
     the server names the committed version, the site deletes the pending one. In all
     other cases the site answers with a mismatch. Only R7, R10 and R11 change the
     committed value.
R12. The site makes the new value durable as pending before it answers.
R13. A member leaves in one commit. The server removes v_i from the table, so that both
     V and M become smaller.

The state machines in `protocol.server` and `protocol.client` have no input or output of
their own: clock, files, network and random numbers are arguments. The tests in
`tests/federation/protocol` run both machines under random faults, and show that they
detect a broken rule. Next: `protocol.messages` for the fields of messages,
`protocol.letters` for letters, and `protocol.wire` for arrays as bytes.
"""
