"""nginx in front of the SuperLink: it forwards only the requests of admitted sites.

Anyone who can connect to a SuperLink can submit an app, which all its nodes then run.
So the SuperLink listens on the loopback interface only. nginx forwards a request if its
path begins with /v1/fleet/ and its header has the key of an admitted site.
`nginx.conf.jinja` is the configuration of nginx.

nginx does not check signatures: Flower and `grid` do.
"""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from sagda import durable, network
from sagda.check import BadValue
from sagda.federation.flower.processes import Process
from sagda.federation.trust.authority import Keys
from sagda.federation.trust.site_keys import Register

FLOWER_PIECE = 5 << 20  # bytes: Flower sends arrays in pieces of this size
MAX_FRAMING = 1 << 18  # bytes of a request in addition to one piece
CONFIG, SITES, ACCESS, ERRORS = "nginx.conf", "sites.map", "access.log", "error.log"
MAX_LOG = 1 << 22  # bytes of a log of nginx, after which the log is emptied
REPORT = 60.0  # seconds before the same refusal is reported again
MAX_REPORTED = 10_000  # refusals whose last report is remembered
START = 10.0  # seconds for nginx to start

# A failed TLS handshake in the error log. The groups are the reason and the address.
HANDSHAKE = re.compile(
    r"\S+ \S+ \[\w+\] \d+#\d+: \*\d+ SSL_do_handshake\(\) failed "
    r"\(SSL: ([^)]*)\).* while SSL handshaking, client: ([^,]+), server: "
)


class TurnedAway(NamedTuple):
    """A request or connection that nginx or the SuperLink refused."""

    name: str  # the address that it came from
    code: str  # the kind of refusal
    text: str  # the reason


def program() -> str:
    """Return the path of nginx. Raises `BadValue` if it is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    nginx = shutil.which("nginx", path=path)
    if nginx is None:
        raise BadValue(
            "a server that other machines can reach needs nginx in front of it; "
            "install nginx (Debian: apt install nginx)."
        )
    return nginx


def plain(value: Any) -> Any:
    """Return `value` for the configuration: a path as absolute, unquoted text."""
    if not isinstance(value, Path):
        return value
    text = str(value.resolve())
    if not re.fullmatch(r"[\w./+@%=:-]+", text):
        raise BadValue(
            f"{text} contains characters that nginx's configuration cannot hold; "
            "move it to another folder."
        )
    return text


class Proxy:
    """A running nginx with its files in a folder.

    Args:
        folder: the folder for nginx's configuration, logs and temporary files.
        host: the address to listen on.
        port: the port to listen on.
        keys: the coordinator's keys, which include the register of admitted sites.
        superlink_port: the SuperLink's port on the loopback interface.
    """

    def __init__(
        self, folder: Path, host: str, port: int, keys: Keys, superlink_port: int
    ):
        self.folder = durable.private(folder).resolve()
        self.host, self.port = host, port
        self.register = Register(keys.sites)
        template = jinja2.Template(
            Path(__file__).with_name("nginx.conf.jinja").read_text(encoding="utf-8"),
            undefined=jinja2.StrictUndefined,
            finalize=plain,
        )
        text = template.render(
            folder=self.folder,
            listen=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            superlink_port=superlink_port,
            max_body=FLOWER_PIECE + MAX_FRAMING,
            keys=keys,  # nginx uses the same certificate as the SuperLink
        )
        durable.write(self.folder / CONFIG, text)
        self.read: dict[str, int] = {}  # bytes that were read, by log
        for log in (self.folder / ACCESS, self.folder / ERRORS):
            log.touch()
            # An earlier process reported the lines that are in the log already.
            self.read[log.name] = log.stat().st_size
        self.reported: dict[tuple[str, str], float] = {}  # time by (name, code)
        self.process = self.started()

    def started(self) -> Process:
        """Start nginx. Return its process once it accepts connections."""
        # Another program that listens on this port would be taken for nginx.
        network.check_port("--port", self.host, self.port)
        self.write_sites()
        command = [program(), "-c", str(self.folder / CONFIG), "-p", str(self.folder)]
        process = Process(command, self.folder, self.folder / "nginx.log")
        # Nobody can connect to an address that means "all interfaces".
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        process.wait_for_port("nginx", near, self.port, START)
        return process

    def write_sites(self) -> bool:
        """Write the admitted keys for nginx. Return True if they have changed."""
        # The header is base64 and the name is checked, so neither needs escapes.
        text = "".join(
            f'"{entry.header}" 1; # {entry.name}\n'
            for entry in self.register.now().values()
            if not entry.expired
        )
        path = self.folder / SITES
        if path.exists() and path.read_text() == text:
            return False
        durable.write(path, text)
        return True

    def update(self) -> None:
        """Restart nginx if it has ended, and give it the keys that are admitted now."""
        if self.process.code is not None:
            self.process.stop()  # workers that still run would block the port
            time.sleep(0.5)
            self.process = self.started()
        elif self.write_sites():
            os.kill(self.process.pid, signal.SIGHUP)  # nginx reads its files again

    def refusals(self) -> Iterator[TurnedAway]:
        """Yield the refusals since the last call.

        A kind of refusal is yielded at most once a minute for each address.
        """
        names = {entry.header: entry.name for entry in self.register.now().values()}
        now = time.monotonic()
        refusals = [refusal_of_request(line, names) for line in self.new_lines(ACCESS)]
        # The error log has the connections that ended before they sent a request.
        for match in map(HANDSHAKE.match, self.new_lines(ERRORS)):
            if match is not None:
                text = f"no TLS connection: {match[1].rpartition(':')[2][:80]}"
                refusals.append(TurnedAway(match[2], "tls", text))
        for refusal in filter(None, refusals):
            kind = refusal.name, refusal.code
            if now - self.reported.get(kind, -REPORT) >= REPORT:
                if len(self.reported) > MAX_REPORTED:
                    self.reported.clear()
                self.reported[kind] = now
                yield refusal

    def new_lines(self, name: str) -> list[str]:
        """Return the complete new lines of a log, at most `MAX_LOG` bytes of them."""
        with (self.folder / name).open("a+b") as file:  # created if it was deleted
            file.seek(self.read[name])
            content = file.read(MAX_LOG)
            # nginx may be writing the rest of the last line.
            content = content[: content.rfind(b"\n") + 1]
            self.read[name] += len(content)
            if self.read[name] > MAX_LOG and self.read[name] == file.seek(
                0, os.SEEK_END
            ):
                file.truncate(0)  # nginx appends, so it starts again at 0
                self.read[name] = 0
        return [line.decode(errors="replace") for line in content.split(b"\n")]


def refusal_of_request(line: str, names: dict[str, str]) -> TurnedAway | None:
    """Return the refusal in a line of the access log, or None if it is malformed.

    `names` are the names of the sites by the keys in their headers.
    """
    try:
        request: dict[str, Any] = json.loads(line)
        peer, path = request["peer"], str(request["path"])[:80]
        status = int(request["status"])
    except (ValueError, KeyError, TypeError):
        return None
    name = names.get(request.get("key", ""), "an unknown key")
    # With an upstream status, nginx forwarded the request and the SuperLink refused it.
    if request.get("upstream"):
        text = f"the SuperLink answered {status} to {name} at {path}"
        return TurnedAway(peer, "superlink", text)
    if status == 400 and not request.get("tls"):
        return TurnedAway(peer, "plaintext", "a request without TLS")
    kind = "broken" if status >= 500 or status in (408, 499) else "request"
    reasons = {
        400: ("header", "a header that is too long or malformed"),
        401: ("key", f"a key that is not admitted, at {path}"),
        403: ("path", f"{path} is not open to other machines"),
        413: ("size", f"{name} sent more than a request may hold"),
    }
    code, text = reasons.get(status, (kind, f"a request of {name} ended with {status}"))
    return TurnedAway(peer, code, text)
