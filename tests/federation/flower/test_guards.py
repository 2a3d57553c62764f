"""The guards around Flower's private functions, and what they refuse."""

import pytest

from sagda.check import BadValue

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")

import flwr.supernode.start_client_internal as node_loops
import tomli_w
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.superlink.grid import http_grid

from sagda.federation.flower import guards
from sagda.federation.flower.app_config import APP

GUARDS = [
    *((part, lambda: guards.guard_grid(int, float)) for part in guards.GRID_PARTS),
    *((part, guards.guard_node) for part in guards.NODE_PARTS),
]


@pytest.fixture(autouse=True)
def unguarded(monkeypatch):
    """Remove the guards after each test. Otherwise they would affect later tests."""
    for part in (guards.PULL_OBJECTS, guards.PULL_MESSAGE, guards.PUSH_MESSAGES):
        monkeypatch.setattr(f"{part.module}.{part.name}", part.get())


@pytest.mark.parametrize(
    ("part", "guard"), GUARDS, ids=[f"{part.name}" for part, _ in GUARDS]
)
def test_a_missing_part_of_flower_is_named(part, guard, monkeypatch):
    """The error is a `BadValue` with one sentence, and no function is replaced."""
    monkeypatch.delattr(f"{part.module}.{part.name}")
    parts = (http_grid, "pull_objects"), (node_loops, "_push_messages")
    before = [getattr(module, name, None) for module, name in parts]
    with pytest.raises(BadValue, match=rf"sagda needs {part.name}.* flwr 1\.41\.$"):
        guard()
    assert before == [getattr(module, name, None) for module, name in parts]


def test_a_part_with_other_parameters_is_named(monkeypatch):
    monkeypatch.setattr(node_loops, "_push_messages", lambda state, deliver: None)
    with pytest.raises(BadValue, match=r"needs _push_messages\(send, push_object\)"):
        guards.guard_node()


def objects_of(content):
    """Return the objects of a message as Flower stores them, by object id."""
    objects = {content.object_id: content.deflate()}
    for child in (content.children or {}).values():
        objects |= objects_of(child)
    return objects


def test_a_message_is_weighed_before_it_is_put_together():
    array = Array("<f4", (4,), "sagda", b"\0" * 16)
    good = objects_of(RecordDict({"payload": ArrayRecord({"x": array})}))
    guards.guard_grid(lambda: 10_000, lambda: 0.1)
    fetch = lambda contents: http_grid.pull_objects(
        list(contents), contents.__getitem__
    )
    assert fetch(good) == good
    guards.guard_grid(lambda: 100, lambda: 0.1)
    with pytest.raises(ObjectPullError, match="more bytes than a reply may have"):
        fetch(good)
    guards.guard_grid(lambda: 10**9, lambda: 0.1)
    with pytest.raises(ObjectPullError, match="more than 2000 objects"):
        fetch({str(i): b"" for i in range(2001)})
    key = array.object_id
    often = array.deflate().replace(b'"arraychunk_ids":[0]', b'"arraychunk_ids":[0,0]')
    often = often.replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [0, 0]')
    assert often != array.deflate()
    head, _, body = often.partition(b"\x00")
    kind, ids, size = head.split(b" ")[0], head.split(b" ")[1:-1], len(body)
    often = b" ".join([kind, *ids, str(size).encode()]) + b"\x00" + body
    with pytest.raises(ObjectPullError, match="names its pieces more than once"):
        fetch(good | {key: often})
    with pytest.raises(ObjectPullError, match="cannot be read"):
        fetch({"a": b"nonsense"})


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_only_an_app_without_code_may_run(tmp_path):
    from flwr.cli.build import build_fab_from_disk

    text = tomli_w.dumps(APP)
    (tmp_path / "pyproject.toml").write_text(text)
    assert guards.is_our_app(build_fab_from_disk(tmp_path))
    (tmp_path / "sagda.py").write_text("print('mine')\n")
    assert not guards.is_our_app(build_fab_from_disk(tmp_path))
    (tmp_path / "sagda.py").unlink()
    other = text.replace("sagda.federation.flower.apps:client", "evil:client")
    (tmp_path / "pyproject.toml").write_text(other)
    assert not guards.is_our_app(build_fab_from_disk(tmp_path))
    assert not guards.is_our_app(b"not an archive")
