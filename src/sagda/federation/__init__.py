"""Federated runs over real sites: who sends what to whom, and which file does it.

A *site* is the process of an organisation, which holds the rows of that organisation.
The *server* leads the run and stores its state.

    server                       letter                site
    ------                       ------                ----
    server/gathering.py   -->    Introduce       -->   site/folder.py
                          <--    Introduction    <--   name, numbers of rows, moments
    The first sites settle the terms (terms.py). Both sides derive the plan (plan.py).

    In each round, for each phase of the algorithm:
    server/rounds.py      -->    Instruction     -->   site/site.py
        ticket, accepted version, broadcast (z, V / M)
        [v_i itself, if the site has lost it]
                          <--    Reply           <--   base, new version, result and v_i
                          <--    or Mismatch     <--   "v_i is not the version you name"
    The server checks each reply (protocol/server.py, protocol/wire.py) and leaves out
    replies that look false (filters.py). It commits their mean (server/store.py).

    Every `eval_every` rounds:
    server/evaluation.py  -->    Evaluate        -->   site/measure.py
                          <--    Evaluated       <--   means over rows, counts by score
    questions.py defines the questions. server/traffic.py counts the bytes.

    At the end, or when a site leaves:
    server/federated_run.py -->  Bye             -->   site/folder.py
                          <--    Thanks          <--   the model is stored

A site answers each letter with one letter, or ignores it. For a site that failed, the
transport answers with a `Fault`. A site with a key signs its answers (trust/).

Words with a special meaning here:

    member: the entry of a site in the server's table. Its index is the `number`.
    z: the point (x, y), which all sites share.
    v_i: the control variate of member i. The code calls it the memory of the member.
    V: the sum of v_i over all M members. The server broadcasts the mean V / M.
    version: the name of one value of v_i. None names the first value, before any reply.
    letter: one message between server and site: a note, its parcels and an envelope.
    note: the content of a letter, of one of the classes in `protocol.letters.KINDS`.
    parcel: the arrays in one field of a note, by name. Each array is a `Part`.
    mark: the digest of a letter.
    seal: the signature of a mark by a site.
    transport: the code that carries letters. Flower is one. It calls a site a node.
    exchange: the server sends letters to several sites and reads their answers.
    opening: the exchange before round 0, for algorithms that need one.
    ticket: the name of one instruction. A site acts on a ticket at most once.
    incarnation: the number of a start of the server. Every ticket contains it.
    epoch: the number of times that all v_i were reset to their first value.
    commit: the change of the server's whole state on disk, in one step.
    moments: the mean and the squared deviations of each feature, for `standardise`.
    question: what a site must compute in an evaluation. See `questions.py`.
    farewell: the letter `Bye`. It ends the part of a site and brings the model.

`server/process.py` runs the process of the server. `server/federated_run.py` decides
who takes part, `server/rounds.py` computes a round, and `protocol/` decides which
replies count. `transport.py` is all that the server knows of a transport. Events
(events.py) are written to files by `server/status.py` and `server/audit.py`.
`verify.py` checks a finished run.

Read `sagda.federation.protocol` before you change code that sends, stores or accepts
v_i.
"""
