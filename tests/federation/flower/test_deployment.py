"""The commands of docs/deployment.md, on three machines with different addresses.

The machines are network namespaces, which need Linux, root and `ip`.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sagda
from support import ROOT, read_audit

pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")

PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
NGINX, IP = shutil.which("nginx", path=PATH), shutil.which("ip", path=PATH)


def can_divide():
    """Return True if this test can make network namespaces."""
    if IP is None or os.geteuid() != 0:
        return False
    name = f"sagda-probe-{os.getpid()}"
    made = subprocess.run([IP, "netns", "add", name], capture_output=True)
    subprocess.run([IP, "netns", "del", name], capture_output=True)
    return made.returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="needs nginx: apt install nginx"),
    pytest.mark.skipif(
        not can_divide(), reason="needs root, and iproute2 for network namespaces"
    ),
]
GUIDE = ROOT / "docs" / "deployment.md"
STEP = re.compile(r"^(On the coordinator|At (\S+)):\n\n```sh\n(.*?)^```", re.M | re.S)
TOML = re.compile(r"^```toml\n(.*?)^```", re.M | re.S)
UNIT = re.compile(r"^```ini\n(.*?)^```", re.M | re.S)
PLACES = {"fl.example.org": "10.77.0.1", "hospital-a": "10.77.0.2"}
PLACES |= {"hospital-b": "10.77.0.3"}


def steps():
    """Yield (machine, command line) in the order of the guide."""
    for who, site, block in STEP.findall(GUIDE.read_text(encoding="utf-8")):
        for line in block.strip().splitlines():
            yield "fl.example.org" if "coordinator" in who else site, line


class Machines:
    """One namespace for each machine, and one with a switch that connects them."""

    def __init__(self, folder):
        self.folder = folder
        self.names = {p: f"sg{os.getpid()}-{i}" for i, p in enumerate(PLACES)}
        self.switch = f"sg{os.getpid()}-s"
        self.started = {}

    def ip(self, *arguments, check=True):
        subprocess.run([IP, *arguments], check=check, capture_output=not check)

    def start(self):
        self.ip("netns", "add", self.switch)
        self.ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        self.ip("-n", self.switch, "link", "set", "br0", "up")
        for i, (place, name) in enumerate(self.names.items()):
            (self.folder / place).mkdir()
            self.ip("netns", "add", name)
            inside = ("peer", "name", "eth0", "netns", name)
            link = f"port{i}"
            self.ip("-n", self.switch, "link", "add", link, "type", "veth", *inside)
            self.ip("-n", self.switch, "link", "set", link, "master", "br0", "up")
            self.ip("-n", name, "link", "set", "lo", "up")
            self.ip("-n", name, "addr", "add", f"{PLACES[place]}/24", "dev", "eth0")
            self.ip("-n", name, "link", "set", "eth0", "up")
            # `ip netns exec` shows these files in place of those in /etc.
            folder = Path("/etc/netns") / name
            folder.mkdir(parents=True)
            known = [f"{address} {host}" for host, address in PLACES.items()]
            (folder / "hosts").write_text(
                "\n".join(["127.0.0.1 localhost", *known, ""])
            )

    def command(self, place, line):
        home = self.folder / place
        environment = os.environ | {"PATH": PATH, "HOME": str(home)}
        command = [IP, "netns", "exec", self.names[place], *line.split()]
        return command, {"cwd": home, "env": environment}

    def type(self, place, line):
        """Run one line of the guide on one machine."""
        if line.startswith("scp "):
            _, file, to = line.split()
            shutil.copy(self.folder / place / file, self.folder / to.rstrip(":"))
            return
        command, where = self.command(place, line)
        if line.startswith(("sagda serve", "sagda join")):
            with (self.folder / place / "terminal.log").open("wb") as log:
                self.started[place] = subprocess.Popen(
                    command, stdout=log, stderr=log, start_new_session=True, **where
                )
            return
        done = subprocess.run(command, capture_output=True, text=True, **where)
        assert done.returncode == 0, (line, done.stderr)

    def stop(self):
        for process in self.started.values():
            if process.poll() is None:
                process.terminate()
        for process in self.started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
        for name in [*self.names.values(), self.switch]:
            self.ip("netns", "del", name, check=False)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


@pytest.fixture
def machines(tmp_path):
    network = Machines(tmp_path)
    try:
        network.start()
        yield network
    finally:
        network.stop()


def write_rows(folder):
    """Write the table of each hospital as a CSV file."""
    data = sagda.load("a9a").train
    clients = sagda.partition(data, "dirichlet", clients=2, samples=600, alpha=2.0)
    for i, name in enumerate(("hospital-a", "hospital-b")):
        part = slice(clients.start[i], clients.start[i] + clients.size[i])
        features, label = clients.data.features[part], clients.data.label[part]
        head = ",".join([*(f"f{j}" for j in range(features.shape[1])), "label"])
        rows = [
            ",".join([*(f"{v:g}" for v in row), f"{int(y > 0)}"])
            for row, y in zip(features, label, strict=True)
        ]
        (folder / name / f"{name}.csv").write_text("\n".join([head, *rows, ""]))


def knock(machines, port):
    """Return True if a site can connect to this port of the coordinator."""
    program = f"import socket; socket.create_connection(('fl.example.org', {port}), 2)"
    command, where = machines.command("hospital-a", sys.executable)
    done = subprocess.run([*command, "-c", program], capture_output=True, **where)
    return done.returncode == 0


def test_a_newcomer_follows_the_guide(machines, tmp_path):
    write_rows(tmp_path)
    center = tmp_path / "fl.example.org"
    (text,) = TOML.findall(GUIDE.read_text(encoding="utf-8"))
    (center / "federation.toml").write_text(text)
    for place, line in steps():
        machines.type(place, line)
    assert set(machines.started) == set(PLACES)
    # While the run continues, a site reaches nginx but not the SuperLink behind it.
    config = center / "run" / "server" / "proxy" / "nginx.conf"
    deadline = time.monotonic() + 60
    while not config.exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    link = re.search(r"https://127.0.0.1:(\d+)", config.read_text())
    assert link
    while not knock(machines, 8443):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert not knock(machines, int(link[1]))
    for place, process in machines.started.items():
        words = tmp_path / place / "terminal.log"
        assert process.wait(400) == 0, words.read_text()[-2000:]
    for name in ("hospital-a", "hospital-b"):
        assert (tmp_path / name / f"sagda-{name}" / "model.safetensors").is_file()
        assert not (tmp_path / name / "keys").exists()
    summary = json.loads((center / "run" / "summary.json").read_text())
    assert summary["split"]["names"] == ["hospital-a", "hospital-b"]
    command, where = machines.command("fl.example.org", "sagda verify run")
    done = subprocess.run(command, capture_output=True, text=True, **where)
    assert "all checks hold" in done.stdout
    lines = read_audit(center / "run" / "server")
    accepted = [x for x in lines if x["what"] == "accepted" and x["phase"] == "local"]
    assert len(accepted) == 10
    assert all(line["seal"] for line in accepted)


def test_the_units_start_what_the_guide_types():
    """The systemd units have the commands of the guide, and they can be parsed."""
    from sagda.commands.main import app

    typed = {line for _, line in steps()}
    for unit in UNIT.findall(GUIDE.read_text(encoding="utf-8")):
        (line,) = re.findall(r"^ExecStart=/opt/sagda/bin/(.*)$", unit, re.M)
        assert line in typed
        app.parse_args(line.split()[1:], exit_on_error=False, print_error=False)
