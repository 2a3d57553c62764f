"""Federated runs over real sites: who sends what to whom, and which file does it.

A *site* is an organisation's process with its own rows. The *server* keeps the state of
the run, with an entry for each site: its *member*. A *transport* carries *letters*
between them; `federation.flower` does so over Flower, whose word for a site is a node.

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
    The server checks each reply (protocol/server.py, protocol/wire.py), leaves out what
    looks false (filters.py), takes the mean and commits (server/store.py).

    Every `eval_every` rounds:
    server/evaluation.py  -->    Evaluate        -->   site/measure.py
                          <--    Evaluated       <--   means over rows, counts by score
    questions.py says what is asked, server/traffic.py counts the bytes.

    At the end, or when a site leaves:
    server/federated_run.py -->  Bye             -->   site/folder.py
                          <--    Thanks          <--   the model is stored

A letter is a note and arrays (protocol/letters.py, protocol/wire.py). A site with a key
seals its answers (trust/). The transport answers with a `Fault` for a site that failed.
transport.py is all that the server knows of a transport.

Who decides: `server/results.py` runs the server's process, `server/federated_run.py`
who takes part, `server/rounds.py` a round, and `protocol/` what is accepted. Read
`sagda.federation.protocol` before changing anything that sends, stores or accepts v_i.
`verify.py` checks a finished run. A listener is notified of events (events.py), which
server/status.py and server/audit.py write to files.
"""
