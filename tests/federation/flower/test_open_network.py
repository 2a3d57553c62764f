"""Attacks on a running federation with real sites, SuperLink and nginx."""

import base64
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time

import numpy as np
import pytest

import sagda
from sagda import network
from sagda.federation.flower import processes
from sagda.federation.server.status import read_status
from sagda.federation.trust import site_keys as identity
from support import read_audit

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")

from sagda.federation.trust.authority import Keys

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
if NGINX is None and os.environ.get("SAGDA_NEED_NGINX"):
    raise RuntimeError("nginx is not installed, and SAGDA_NEED_NGINX is set")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="needs nginx: apt install nginx")
pytestmark = [needs_nginx, pytest.mark.slow]

SAGDA = [sys.executable, "-m", "sagda.commands.main"]
SITES = ("site-0", "site-1", "liar")
CONFIG = """algorithms = ["sagda-i"]
rounds = 10000
eval_every = 10000
local_steps = 3
batch_size = 20
local_lr = 0.05
server_lr = 1.0
[federation]
sites = 3
timeout = 60
"""
# Python runs this code at the start of every process of the site `liar`. It changes
# the answers of this site in the way that the file `mode` names.
LIAR = """
import json, os, sys

def begin():
    from sagda.federation.flower import apps as flower
    honest, home = flower.records_of, os.environ["LIAR_HOME"]

    def records(letter):
        with open(os.path.join(home, "mode")) as file:
            mode = file.read().strip()
        kind = type(letter.note).__name__
        old = os.path.join(home, "old")
        if kind != "Reply" or mode == "honest":
            return honest(letter)
        content = honest(letter)
        if mode == "replay":
            if os.path.exists(old):
                with open(old, "rb") as file:
                    return flower_load(file.read())
        if mode in ("record", "replay"):
            with open(old, "wb") as file:
                file.write(flower_dump(content))
        if mode == "tamper":
            array = next(iter(content["payload"].values()))
            array.data = bytes([array.data[0] ^ 1]) + array.data[1:]
        if mode == "malformed":
            content["note"]["text"] = "{" * 1000
        return content

    def flower_dump(content):
        text = content["note"]["text"], content["note"]["seal"]
        parts = {
            name: {k: [a.dtype, list(a.shape), a.data.hex()] for k, a in r.items()}
            for name, r in content.items() if name != "note"
        }
        return json.dumps([text, parts]).encode()

    def flower_load(data):
        from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
        (text, seal), parts = json.loads(data)
        content = RecordDict({"note": ConfigRecord({"text": text, "seal": seal})})
        for name, record in parts.items():
            content[name] = ArrayRecord({
                k: Array(d, tuple(s), "sagda", bytes.fromhex(h))
                for k, (d, s, h) in record.items()
            })
        return content

    flower.records_of = records
    # An answer that names another run, with a valid seal.
    from sagda.federation.site.folder import SiteFolder
    answered = SiteFolder.answer

    def answer(self, letter):
        reply = answered(self, letter)
        with open(os.path.join(home, "mode")) as file:
            mode = file.read().strip()
        if mode == "other-run" and type(reply.note).__name__ == "Reply":
            reply = reply._replace(note=reply.note._replace(run="another"))
        return reply

    SiteFolder.answer = answer

if "flwr-clientapp" in " ".join(sys.argv) or "clientapp" in " ".join(sys.orig_argv):
    begin()
"""


class Federation:
    """A server behind nginx and its sites, which run during all tests here."""

    def __init__(self, folder):
        self.folder, self.port = folder, network.free_port()
        self.keys = Keys(folder / "keys")
        self.started = []

    def start(self):
        rows = sagda.load("a9a").train
        clients = sagda.partition(rows, "iid", clients=3, samples=200)
        self.keys.init(["localhost"], 30)
        (self.folder / "federation.toml").write_text(CONFIG)
        (self.folder / "evil").mkdir()
        (self.folder / "evil" / "sitecustomize.py").write_text(LIAR)
        self.mode("honest")
        for i, name in enumerate(SITES):
            part = slice(clients.start[i], clients.start[i] + clients.size[i])
            np.savez(
                self.folder / f"{name}.npz",
                features=clients.data.features[part],
                label=clients.data.label[part],
            )
            _, public = identity.make_site(self.folder, name, 30)
            self.keys.admit(public, False)
        self.run(
            "serve", "serve", "federation.toml", "--out", "run", "--proxy",
            "--port", str(self.port),
        )  # fmt: skip
        for name in SITES:
            evil = {"PYTHONPATH": str(self.folder / "evil")} if name == "liar" else {}
            self.join(name, f"{name}.key", **evil)
        self.wait(lambda: self.round >= 1, "no round was committed", 400)

    def run(self, name, *arguments, **environment):
        environment |= {"LIAR_HOME": str(self.folder)}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*SAGDA, *arguments], cwd=self.folder, stdout=log, stderr=log,
                env=os.environ | environment, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def join(self, name, key, **environment):
        data = self.folder / f"{name}.npz"
        arguments = ["--server", self.address, "--data", str(data), "--name", name]
        arguments += ["--key", key, "--ca", str(self.keys.ca)]
        return self.run(f"join-{name}", "join", *arguments, **environment)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def round(self):
        status = read_status(self.folder / "run" / "server")
        return -1 if status is None else status.round

    def mode(self, word):
        path = self.folder / "mode.new"
        path.write_text(word)
        path.rename(self.folder / "mode")

    def audit(self):
        return read_audit(self.folder / "run" / "server")

    def named(self, code, since=0, **wanted):
        """Return the lines of the audit log that have this code and these values."""
        return [
            line
            for line in self.audit()[since:]
            if line.get("code") == code
            and all(line.get(key) == value for key, value in wanted.items())
        ]

    def wait(self, holds, what, seconds=180):
        deadline = time.monotonic() + seconds
        while not holds():
            for process in self.started[:4]:
                assert process.poll() is None, self.words()
            assert time.monotonic() < deadline, f"{what}: {self.words()}"
            time.sleep(0.2)

    def continues(self, since):
        """Wait until the server has committed another round."""
        self.wait(lambda: self.round > since, "no more rounds")

    def words(self):
        logs = [*self.folder.glob("*.log"), *self.folder.glob("run/server/*.log")]
        return {p.name: p.read_text(errors="replace")[-1500:] for p in logs}

    def stop(self):
        for process in reversed(self.started):
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    server = Federation(tmp_path_factory.mktemp("open"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


def context(federation):
    return ssl.create_default_context(cafile=str(federation.keys.ca))


def post(federation, path, headers=(), body=b""):
    """Send a request over TLS. Return the status, or None if there is no answer."""
    with socket.create_connection(("127.0.0.1", federation.port), 10) as plain:
        secure = context(federation).wrap_socket(plain, server_hostname="localhost")
        with secure as link:
            lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close"]
            lines += [*headers, f"Content-Length: {len(body)}", "", ""]
            link.sendall("\r\n".join(lines).encode() + body)
            answer = link.recv(4096)
    return int(answer.split()[1]) if answer else None


def stranger(federation, name, *arguments):
    """Start a site that the server has not admitted. Return its process."""
    shutil.copy(federation.folder / "site-0.npz", federation.folder / f"{name}.npz")
    options = ["--server", federation.address, "--data", f"{name}.npz"]
    options += ["--name", name, *arguments]
    return federation.run(f"join-{name}", "join", *options)


def turned_away(federation, site, name, since, at):
    """End the process of `site`. Check that it has not joined and the run continues."""
    site.terminate()
    site.wait(40)
    federation.continues(at)
    manifest = json.loads((federation.folder / "run/server/manifest.json").read_text())
    assert sorted(manifest["state"]["members"]) == sorted(SITES)
    assert not (federation.folder / f"sagda-{name}" / "farewell.json").exists()
    lines = federation.audit()[since:]
    assert not [x for x in lines if x["what"] == "accepted" and x["name"] == name]


def test_an_unregistered_key(federation):
    """nginx refuses a complete site whose key was not admitted."""
    since, at = len(federation.audit()), federation.round
    identity.make_site(federation.folder, "stranger", 30)
    keys = ["--key", "stranger.key", "--ca", str(federation.keys.ca)]
    site = stranger(federation, "stranger", *keys)
    federation.wait(lambda: federation.named("key", since), "not in the audit log")
    turned_away(federation, site, "stranger", since, at)


def test_a_stolen_name_under_a_registered_key_is_not_enough(federation):
    """A public key is not secret: Flower refuses requests without its signature."""
    since, at = len(federation.audit()), federation.round
    public = identity.Entry.read(federation.folder / "site-0.pub").header
    headers = [f"flwr-public-key: {public}", "Content-Type: application/protobuf"]
    now = base64.b64encode(b"no signature").decode()
    headers += ["flwr-timestamp: 2026-01-01T00:00:00+00:00", f"flwr-signature: {now}"]
    assert post(federation, "/v1/fleet/pull-messages", headers, b"x") in (400, 401, 415)
    federation.wait(lambda: federation.named("superlink", since), "not in the log")
    federation.continues(at)


def test_a_wrong_certificate(federation):
    """A site with another certificate authority refuses to connect to this server."""
    since, at = len(federation.audit()), federation.round
    other = Keys(federation.folder / "other")
    other.init(["localhost"], 30)
    _, public = identity.make_site(federation.folder, "foreigner", 30)
    other.admit(public, False)
    keys = ["--key", "foreigner.key", "--ca", str(other.ca)]
    site = stranger(federation, "foreigner", *keys)
    federation.wait(lambda: federation.named("tls", since), "not in the audit log")
    turned_away(federation, site, "foreigner", since, at)


def test_no_tls(federation):
    since, at = len(federation.audit()), federation.round
    site = stranger(federation, "open", "--plaintext")
    federation.wait(lambda: federation.named("plaintext", since), "not in the log")
    turned_away(federation, site, "open", since, at)


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        ("replay", "signature"),
        ("tamper", "signature"),
        ("other-run", "run"),
        ("malformed", "signature"),
    ],
)
def test_a_registered_site_that_lies(mode, code, federation):
    """False answers are refused with a code. Later honest answers are accepted."""
    if mode == "replay":
        federation.mode("record")
        federation.wait((federation.folder / "old").exists, "nothing was recorded")
    since, at = len(federation.audit()), federation.round
    federation.mode(mode)
    named = lambda: federation.named(code, since, name="liar")
    federation.wait(named, f"no line with {code}: {federation.audit()[since:]}")
    federation.mode("honest")
    federation.continues(at)
    done = len(federation.audit())
    accepted = lambda: [
        line
        for line in federation.audit()[done:]
        if line["what"] == "accepted" and line["name"] == "liar"
    ]
    federation.wait(accepted, "an honest answer is accepted again")


def test_an_oversized_header_and_body(federation):
    since, at = len(federation.audit()), federation.round
    assert (
        post(federation, "/v1/fleet/pull-messages", ["X-Big: " + "a" * 20_000]) == 400
    )
    federation.wait(lambda: federation.named("header", since), "not in the audit log")
    public = identity.Entry.read(federation.folder / "site-0.pub").header
    with socket.create_connection(("127.0.0.1", federation.port), 10) as plain:
        secure = context(federation).wrap_socket(plain, server_hostname="localhost")
        with secure as link:
            link.sendall(
                b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\n"
                b"flwr-public-key: " + public.encode() + b"\r\n"
                b"Content-Length: 100000000000\r\n\r\n"
            )
            assert b" 413 " in link.recv(4096).splitlines()[0]
    federation.wait(lambda: federation.named("size", since), "not in the audit log")
    federation.continues(at)


def test_an_outsider_who_submits_an_app(federation):
    """The command `flwr run`, with the right authority, cannot reach /v1/control/."""
    since, at = len(federation.audit()), federation.round
    home = federation.folder / "outsider"
    app = home / "app"
    app.mkdir(parents=True)
    (app / "evil.py").write_text("server = client = print\n")
    text = (federation.folder / "run/server/flower/app/pyproject.toml").read_text()
    text = text.replace("sagda.federation.flower.apps:", "evil:")
    (app / "pyproject.toml").write_text(text)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "there"\n\n[superlink.there]\naddress = '
        f'"{federation.address}"\nroot-certificates = "{federation.keys.ca}"\n'
    )
    environment = os.environ | processes.QUIET | {"FLWR_HOME": str(home)}
    done = subprocess.run(
        [processes.program("flwr"), "run", str(app), "there"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0 or "rror" in done.stdout + done.stderr
    federation.wait(lambda: federation.named("path", since), "not in the audit log")
    assert any("/v1/control/" in line["text"] for line in federation.named("path"))
    federation.continues(at)


def test_strangers_are_slowed_down(federation):
    statuses = [post(federation, "/") for _ in range(25)]
    assert statuses.count(429) >= 10
    assert statuses[0] in (403, 429)


def test_a_site_removed_and_admitted_again_while_it_runs(federation):
    at = federation.round
    federation.keys.remove("liar")
    members = lambda: json.loads(
        (federation.folder / "run/server/manifest.json").read_text()
    )["state"]["members"]
    federation.wait(lambda: "liar" not in members(), "still a member")
    federation.continues(at)
    federation.keys.admit(federation.folder / "liar.pub", False)
    federation.wait(lambda: "liar" in members(), "not admitted again", 120)
    federation.continues(federation.round)


def test_last_the_files_are_exact(federation):
    """After all these attacks, V is still the sum of all control variates."""
    serve = federation.started[0]
    serve.terminate()
    serve.wait(60)
    done = subprocess.run(
        [*SAGDA, "verify", str(federation.folder / "run"), "--json"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert json.loads(done.stdout)["holds"], done.stdout
    assert not network.listens("127.0.0.1", federation.port)
