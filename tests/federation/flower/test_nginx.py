"""Requests from a network to a real SuperLink behind a real nginx, without a run."""

import base64
import contextlib
import datetime
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from typing import NamedTuple

import pytest

from sagda import network
from sagda.check import BadValue
from sagda.federation.flower import nginx
from sagda.federation.trust import site_keys as identity

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")

from flwr.proto.fleet_pb2 import ActivateNodeRequest

from sagda.federation.flower.superlink import SuperLinkProcess
from sagda.federation.trust.authority import Keys

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
if NGINX is None and os.environ.get("SAGDA_NEED_NGINX"):
    raise RuntimeError("nginx is not installed, and SAGDA_NEED_NGINX is set")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="needs nginx: apt install nginx")


class Server(NamedTuple):
    """A running SuperLink with nginx in front of it, but without a run."""

    link: SuperLinkProcess
    proxy: nginx.Proxy
    keys: Keys


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("door")
    keys = Keys(folder / "keys")
    keys.init([], 30)
    _, public = identity.make_site(folder, "site-0", 30)
    keys.admit(public, False)
    with contextlib.ExitStack() as stack:
        inside, outside = network.free_port(), network.free_port()
        link = SuperLinkProcess(folder / "run", "127.0.0.1", inside, keys)
        stack.callback(lambda: link.process.stop())
        link.enrol()
        proxy = nginx.Proxy(folder / "proxy", "127.0.0.1", outside, keys, inside)
        stack.callback(lambda: proxy.process.stop())
        yield Server(link, proxy, keys)


def ask(server, path, headers=None, body=b"", length=None, method="POST"):
    """Send a request over TLS. Return the status of the answer."""
    context = ssl.create_default_context(cafile=str(server.keys.ca))
    size = len(body) if length is None else length
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines += [f"Content-Length: {size}", "", ""]
    with (
        socket.create_connection(("127.0.0.1", server.proxy.port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as link,
    ):
        link.sendall("\r\n".join(lines).encode() + body)
        return int(link.recv(4096).split()[1])


def signed(server, name="site-0"):
    """Return the headers that a Flower node with this key sends."""
    secret = server.keys.folder.parent / f"{name}.key"
    signer = identity.Signer.read(secret)
    entry = identity.Entry.read(secret.with_suffix(".pub"))
    now = datetime.datetime.now(datetime.UTC).isoformat()
    from flwr.supercore.primitives.asymmetric import sign_message

    signature = base64.b64encode(sign_message(signer.key, now.encode())).decode()
    return {
        "flwr-public-key": entry.header,
        "flwr-timestamp": now,
        "flwr-signature": signature,
        "Content-Type": "application/protobuf",
    }


def activation(server, name="site-0"):
    public = base64.b64decode(signed(server, name)["flwr-public-key"])
    request = ActivateNodeRequest(public_key=public, heartbeat_interval=30)
    return request.SerializeToString()


ACTIVATE = "/v1/fleet/activate-node"
KNOWN = (200, 412)  # the SuperLink's status for a registered key; 412: active already


@needs_nginx
def test_an_admitted_key_comes_through_and_no_other(server):
    assert ask(server, ACTIVATE, signed(server), activation(server)) == 200
    forged = signed(server) | {"flwr-signature": "bm90aGluZw=="}
    assert ask(server, ACTIVATE, forged, activation(server)) == 401
    folder = server.keys.folder.parent
    identity.make_site(folder, "stranger", 30)
    asked = signed(server, "stranger"), activation(server, "stranger")
    assert ask(server, ACTIVATE, *asked) == 401
    assert ask(server, ACTIVATE) == 401
    peers_refused_with(server, {"superlink", "key"})


@needs_nginx
@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/runtime/pull-messages",
        "/v1/fleet/../control/start-run",
        "/docs",
        "/",
    ],
)
def test_other_paths_are_closed(path, server):
    assert ask(server, path, signed(server)) == 403
    server.proxy.reported.clear()
    peers_refused_with(server, {"path"})


@needs_nginx
def test_what_is_too_large_is_not_read(server):
    assert ask(server, ACTIVATE, signed(server), length=10**12) == 413
    assert ask(server, ACTIVATE, {"X-Big": "a" * 20_000}) == 400
    assert ask(server, ACTIVATE, signed(server), method="GET") == 403
    peers_refused_with(server, {"size", "header"})


@needs_nginx
def test_only_tls_is_spoken_and_only_with_our_authority(server, tmp_path):
    with socket.create_connection(("127.0.0.1", server.proxy.port), 10) as link:
        link.sendall(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 400 " in link.recv(4096).splitlines()[0]
    other = Keys(tmp_path / "keys")
    other.init([], 30)
    context = ssl.create_default_context(cafile=str(other.ca))
    with (
        socket.create_connection(("127.0.0.1", server.proxy.port), 10) as plain,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(plain, server_hostname="localhost")
    assert peers_refused_with(server, {"plaintext", "tls"}) == {"127.0.0.1"}


@needs_nginx
def test_strangers_may_try_once_a_second(server):
    statuses = [ask(server, "/") for _ in range(20)]
    assert 429 in statuses
    assert ask(server, ACTIVATE, signed(server), activation(server)) in KNOWN


@needs_nginx
def test_a_removed_key_is_out_at_once_and_may_come_back(server):
    public = server.keys.folder.parent / "site-0.pub"
    server.keys.remove("site-0")
    server.proxy.update()
    asked = lambda: ask(server, ACTIVATE, signed(server), activation(server))
    until(lambda: asked() in (401, 429))
    server.keys.admit(public, False)
    server.link.enrol()
    server.proxy.update()
    until(lambda: asked() in KNOWN)


def peers_refused_with(server, codes):
    """Wait until nginx's logs have refusals with these codes. Return the addresses."""
    refusals = []

    def read_codes():
        refusals.extend(server.proxy.refusals())
        return {refusal.code for refusal in refusals}

    until(lambda: codes <= read_codes())
    return {refusal.name for refusal in refusals}


def until(holds):
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@needs_nginx
def test_nginx_accepts_the_configuration(server):
    done = subprocess.run(
        [NGINX, "-t", "-c", str(server.proxy.folder / "nginx.conf")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_without_nginx_the_package_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(BadValue, match="apt install nginx"):
        nginx.program()


def test_a_path_that_nginx_cannot_read_is_named(tmp_path):
    with pytest.raises(BadValue, match="characters that nginx's configuration cannot"):
        nginx.plain(tmp_path / "a; b {")


@needs_nginx
def test_an_nginx_that_was_killed_is_started_again(server):
    server.proxy.update()
    os.kill(server.proxy.process.pid, signal.SIGKILL)
    until(lambda: server.proxy.process.code is not None)
    server.proxy.update()
    asked = lambda: ask(server, ACTIVATE, signed(server), activation(server))
    until(lambda: asked() in KNOWN)
