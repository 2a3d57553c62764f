"""Rounds over letters: they agree with the simulator, and refuse invalid replies."""

import json
import tracemalloc

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sagda
from sagda.federation.plan import Plan, Specs
from sagda.federation.protocol.client import Cache
from sagda.federation.protocol.letters import Letter
from sagda.federation.protocol.messages import Mismatch, Reply
from sagda.federation.protocol.wire import Part, Refused
from sagda.federation.server.evaluation import evaluate
from sagda.federation.server.rounds import FederatedRounds, first_state
from sagda.federation.terms import Options
from support import InProcess, flat, run64, uneven_table

NAMES = ["site-0", "site-1", "site-2", "site-3", "site-4"]


def plan_of(name, problem, **options):
    own = {} if name == "parallel-sgda" else {"local_steps": 3}
    method = sagda.algorithm(name, local_lr=(0.05, 0.1), **own | options)
    return Plan(method, problem, "run", "digest", 4, 2, 3, width=4, float64=True)


def server_of(plan, net, save=lambda state, records: None, state=None, **options):
    state = first_state(plan, NAMES) if state is None else state
    return FederatedRounds(plan, state, net, save, **options)


def run_to(server, rounds):
    """Run the server up to a round, without failures. Return the algorithm's state."""
    while server.state.round < rounds:
        assert server.attempt()
    return server.variables


@pytest.fixture(scope="module")
def clients():
    """Clients of equal size, so that the sites share their compiled programs."""
    return uneven_table([4] * 5)


def simulated(plan, clients, rounds):
    return run64(
        plan.method, plan.problem, clients, rounds=rounds, cohort=3, seeds=plan.seed
    )


@pytest.mark.slow
def test_sites_of_unequal_size_agree_with_the_simulator():
    agree_in("sagda-i", uneven_table([3, 5, 2, 4, 3]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sagda-i", "sagda-ii"])
def test_rounds_over_letters_agree_with_the_simulator(name, clients):
    agree_in(name, clients)


def agree_in(name, clients):
    problem = sagda.DRO.of(clients)
    plan = plan_of(name, problem)
    net = InProcess(plan, clients)
    server = server_of(plan, net)
    state = run_to(server, 4)
    run = simulated(plan, clients, 4)
    np.testing.assert_allclose(
        flat(state), flat(run.carry.state), rtol=1e-10, atol=1e-12
    )
    assert server.traffic.down == run.history["bytes_down"][0, -1]
    assert server.traffic.up == run.history["bytes_up"][0, -1]


@pytest.mark.parametrize(
    ("kind", "share"), [("auc", False), ("dro", True), ("dro", False)]
)
def test_clients_sums_give_the_simulators_columns(kind, share, clients):
    problem = sagda.DRO.of(clients) if kind == "dro" else sagda.AUC.of(clients)
    plan = plan_of("fsgda", problem)
    server = server_of(plan, InProcess(plan, clients))
    found = evaluate(server, share)[0]
    run = simulated(plan, clients, 1)
    phi = {"grad_phi_sq", "phi", "gap"}
    assert phi <= set(found) or (kind == "dro" and not share)
    assert {"f", "worst_client_loss", "auc_train"} <= set(found)
    for name in set(found) - {"grad_x_sq", "grad_y_sq", "evaluated"}:
        np.testing.assert_allclose(
            found[name], run.history[name][0, 0], rtol=1e-9, err_msg=name
        )
    assert server.traffic.evaluation > 0
    assert server.traffic.down == 0


@pytest.mark.slow
def test_a_warm_start_agrees_too(clients):
    plan = plan_of("sagda-i", sagda.AUC.of(clients), start="warm")
    state = run_to(server_of(plan, InProcess(plan, clients)), 3)
    run = simulated(plan, clients, 3)
    np.testing.assert_allclose(flat(state), flat(run.carry.state), rtol=1e-10)


def test_both_sides_go_on_from_their_disks(clients):
    """A restart of the server and the loss of a site's disk change nothing."""
    plan = plan_of("sagda-i", sagda.AUC.of(clients))
    whole = run_to(server_of(plan, InProcess(plan, clients)), 6)
    net, states = InProcess(plan, clients), []
    keep = lambda state, records: states.append(state)
    run_to(server_of(plan, net, keep), 2)
    net.disks["site-1"] = Cache()
    net.sites = {name: net.site(i) for i, name in enumerate(NAMES)}
    again = server_of(plan, net, keep, state=states[-1], clock=9)
    state = run_to(again, 6)
    np.testing.assert_array_equal(flat(state), flat(whole))
    members = states[-1].members
    with jax.enable_x64(True):
        held = [again.first if m.memory is None else m.memory
                for m in members.values()]  # fmt: skip
        mean = jax.tree.map(lambda *a: np.mean(a, axis=0), *held)
    np.testing.assert_allclose(flat(state.v), flat(mean), atol=1e-12)


def spoiled(change):
    def spoil(name, letter):
        if name != "site-2" or not isinstance(letter.note, Reply):
            return letter
        payload = change(dict(letter.note.payload))
        return Letter(letter.note._replace(payload=payload))

    return spoil


def with_part(parcel, **change):
    name = next(iter(parcel))
    return parcel | {name: parcel[name]._replace(**change)}


def nan(parcel):
    name = next(iter(parcel))
    array = np.frombuffer(parcel[name].data).copy()
    array[0] = np.nan
    return with_part(parcel, data=array.tobytes())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (nan, "nonfinite"),
        (lambda p: with_part(p, dtype="<f4"), "dtype"),
        (lambda p: with_part(p, shape=(1, 1)), "shape"),
        (lambda p: with_part(p, data=b"\0" * 7), "size"),
        (lambda p: with_part(p, data=[0.0]), "format"),
        (lambda p: p | {"more": next(iter(p.values()))}, "keys"),
        (lambda p: dict(list(p.items())[1:]), "keys"),
        (lambda p: [*p.values()], "format"),
    ],
)
def test_what_is_not_as_specified_is_refused_and_the_round_continues(
    change, code, clients
):
    plan = plan_of("fsgda", sagda.AUC.of(clients))._replace(cohort=5)
    net = InProcess(plan, clients, spoiled(change))
    server = server_of(plan, net)
    run_to(server, 2)
    assert server.traffic.refused == {code: 2}
    assert server.state.round == 2


def test_a_reply_that_is_too_long_is_refused(clients):
    plan = plan_of("fsgda", sagda.AUC.of(clients))._replace(cohort=5)
    net = InProcess(plan, clients)
    options = Options(min_clients=1, filter="none", bound=1e-9)
    server = server_of(plan, net, options=options)
    assert not server.attempt()
    assert not server.attempt()
    assert server.traffic.refused == {"norm": 10}


def test_too_few_answers_change_nothing(clients):
    plan = plan_of("sagda-ii", sagda.AUC.of(clients))._replace(cohort=5)
    broken = iter([True] * 3 + [False] * 100)
    lose = lambda name, letter: None if next(broken) else letter
    states = []
    net = InProcess(plan, clients, lose)
    keep = lambda state, records: states.append(state)
    options = Options(min_clients=4, filter="none")
    server = server_of(plan, net, keep, options=options)
    before = flat(server.state.variables)
    assert not server.attempt()
    np.testing.assert_array_equal(flat(server.state.variables), before)
    assert len(states) == 1  # the state that the server saved when it started
    assert server.attempt()


def numbers_of(text):
    """Return the paths to all values in a JSON text."""
    found = []

    def walk(value, path):
        found.append(path)
        items = value.items() if isinstance(value, dict) else ()
        items = enumerate(value) if isinstance(value, list) else items
        for key, inner in items:
            walk(inner, (*path, key))

    walk(json.loads(text), ())
    return found


def changed(text, path, value):
    whole = json.loads(text)
    if not path:
        return json.dumps(value)
    at = whole
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(whole)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


class ReplyCheck:
    """A server that waits for one reply, and that valid reply."""

    def __init__(self, clients):
        plan = plan_of("sagda-i", sagda.AUC.of(clients))
        net = InProcess(plan, clients)
        self.server = server_of(plan, net)
        state = self.server.variables
        message = plan.algorithm.phases[0].broadcast(state)
        parcel = self.server.specs.down["local"].pack(message)
        self.told = self.server.protocol.issue("site-1", "local", parcel)
        self.good = net.sites["site-1"].handle(Letter(self.told, 1))
        self.places = numbers_of(self.good.text)

    def receive(self, text, parcels):
        """Let the server read a letter. Return the reply if the server accepts it."""
        try:
            letter = Letter.read(text, parcels)
        except Refused:
            return None
        if not isinstance(letter.note, Reply | Mismatch):
            return None
        machine = self.server.protocol
        machine.lost_memory.clear()
        refusal = machine.receive("site-1", "local", letter.note)
        machine.accepted.clear()
        return letter.note if refusal is None and letter.note != () else None

    def check(self, reply):
        """Check run, configuration, ticket, base and arrays of an accepted reply."""
        if isinstance(reply, Mismatch):
            return
        told = self.told
        assert (reply.run, reply.config) == (told.run, told.config)
        assert reply.ticket == told.ticket
        assert reply.base == told.accepted
        for name, part in self.good.note.payload.items():
            array = np.frombuffer(reply.payload[name].data, part.dtype)
            assert np.isfinite(array).all()
            assert reply.payload[name].shape == part.shape


@pytest.fixture(scope="module")
def reply_check(clients):
    return ReplyCheck(clients)


def spoil_letters(reply_check, data):
    """Send the valid reply with random changes in its note, its parcels, or both."""
    text, parcels = reply_check.good.text, dict(reply_check.good.parcels)
    if data.draw(st.booleans()):
        path = data.draw(st.sampled_from(reply_check.places))
        text = changed(text, path, data.draw(ANYTHING))
    if data.draw(st.integers(0, 9)) == 0:
        text = data.draw(st.text(max_size=40))
    if data.draw(st.booleans()):
        payload = dict(parcels.get("payload", {}))
        name = data.draw(st.sampled_from([*payload, "other"]))
        part = payload.get(name, Part("<f8", (2,), b"\0" * 16))
        change = data.draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "dtype": st.sampled_from(["<f4", "<f8", ">f8", "<c16", "|O", ""]),
                    "shape": st.lists(st.integers(-1, 10**12), max_size=3).map(tuple),
                    "data": st.binary(max_size=200)
                    | st.just(np.full(len(part.data) // 8, np.nan).tobytes()),
                },
            )
        )
        payload[name] = part._replace(**change)
        parcels["payload"] = payload
    found = reply_check.receive(text, parcels)
    if found is not None:
        reply_check.check(found)


def test_the_reply_itself_is_taken(reply_check):
    assert (
        reply_check.receive(reply_check.good.text, reply_check.good.parcels) is not None
    )


@given(data=st.data())
@settings(max_examples=500, deadline=None)
def test_malformed_replies_are_refused_and_stop_nothing(reply_check, data):
    spoil_letters(reply_check, data)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=10_000, deadline=None)
def test_so_are_ten_thousand_in_little_memory(reply_check, data):
    spoil_letters(reply_check, data)


def test_a_claim_of_many_numbers_takes_no_memory(reply_check):
    payload = dict(reply_check.good.note.payload)
    name = next(iter(payload))
    payload[name] = payload[name]._replace(shape=(10**11,))
    tracemalloc.start()
    assert reply_check.receive(reply_check.good.text, {"payload": payload}) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_specifications_name_what_is_sent(clients):
    specs = Specs.of(plan_of("sagda-i", sagda.AUC.of(clients)))
    assert specs.down["local"].bytes == specs.up["local"].bytes
    assert specs.memory.bytes * 2 == specs.up["local"].bytes
