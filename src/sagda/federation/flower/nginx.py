"""nginx before the SuperLink: of all that Flower offers, only the sites' door is open.

Whoever reaches a SuperLink can hand in code that every node runs. So it listens on the
loopback interface, and nginx passes on what begins with /v1/fleet/ and names the key of
an admitted site; everything else ends there, and is counted.
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

from sagda import durable, network
from sagda.check import BadValue
from sagda.federation.flower import processes
from sagda.federation.trust.authority import Keys
from sagda.federation.trust.site_keys import Register

PIECE = 5 << 20  # bytes: Flower cuts arrays into pieces of this size
AROUND = 1 << 18  # bytes that a request may have around one
CONFIG, SITES, ACCESS, ERRORS = "nginx.conf", "sites.map", "access.log", "error.log"
LOG_LIMIT = 1 << 22  # bytes of nginx's own logs, which the audit log has taken in
REPEATED = 60.0  # seconds in which the same refusal is counted, not written again

TEXT = """# Written by sagda: the sites' door of a federation, and nothing else.
daemon off;
worker_processes 1;
worker_rlimit_nofile 8192;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 4096; }}
http {{
  map_hash_bucket_size 1024;
  log_format sagda escape=json '{{"time":"$time_iso8601","peer":"$remote_addr",'
    '"status":$status,"upstream":"$upstream_status","path":"$uri",'
    '"tls":"$ssl_protocol","key":"$http_flwr_public_key"}}';
  map $status $logged {{ ~^[23] 0; 429 0; default 1; }}
  access_log {folder}/access.log sagda if=$logged;
  client_body_temp_path {folder}/tmp-body;
  proxy_temp_path {folder}/tmp-proxy;
  fastcgi_temp_path {folder}/tmp-fastcgi;
  uwsgi_temp_path {folder}/tmp-uwsgi;
  scgi_temp_path {folder}/tmp-scgi;
  server_tokens off;

  # What a request may be, before any of it is read.
  client_max_body_size {largest};
  client_body_buffer_size {largest};
  client_header_buffer_size 2k;
  large_client_header_buffers 4 4k;
  client_header_timeout 5s;
  client_body_timeout 60s;
  reset_timedout_connection on;

  # Admitted keys have no limit but the address's; others may try once a second.
  map $http_flwr_public_key $admitted {{ default 0; include {folder}/sites.map; }}
  map $admitted $stranger {{ 1 ""; default $binary_remote_addr; }}
  limit_req_zone $stranger zone=strangers:10m rate=1r/s;
  limit_req_zone $binary_remote_addr zone=peers:10m rate=100r/s;
  limit_conn_zone $binary_remote_addr zone=connections:10m;
  limit_req_status 429;
  limit_conn_status 429;
  limit_req_log_level info;
  limit_conn_log_level info;

  server {{
    listen {listen} ssl;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.3;
    limit_conn connections 64;

    location /v1/fleet/ {{
      if ($admitted = 0) {{ rewrite ^ /stranger last; }}
      limit_req zone=peers burst=400 nodelay;
      limit_except POST {{ deny all; }}
      proxy_pass https://127.0.0.1:{port};
      proxy_ssl_trusted_certificate {ca};
      proxy_ssl_verify on;
      proxy_ssl_name localhost;
      proxy_ssl_protocols TLSv1.2 TLSv1.3;
      proxy_http_version 1.1;
      proxy_set_header Host $host;
      proxy_set_header Connection "";
      proxy_read_timeout 300s;
      proxy_buffering off;
    }}
    location = /stranger {{
      internal;
      limit_req zone=strangers burst=10 nodelay;
      try_files /none =401;
    }}
    location / {{
      limit_req zone=strangers burst=10 nodelay;
      try_files /none =403;
    }}
  }}
}}
"""


HANDSHAKE = re.compile(
    r"\S+ \S+ \[\w+\] \d+#\d+: \*\d+ SSL_do_handshake\(\) failed "
    r"\(SSL: ([^)]*)\).* while SSL handshaking, client: ([^,]+), server: "
)


class TurnedAway(NamedTuple):
    """Someone who was turned away at the door."""

    peer: str
    code: str
    text: str


def program() -> str:
    """nginx, or a sentence."""
    places = os.pathsep.join(
        [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]
    )
    found = shutil.which("nginx", path=places)
    if found is None:
        raise BadValue(
            "a server that is open to others needs nginx in front of it; install it "
            "(Debian: apt install nginx)."
        )
    return found


def config_text(folder: Path, listen: str, port: int, keys: Keys) -> str:
    """A whole nginx.conf; `port` is the SuperLink's on the loopback interface."""
    return TEXT.format(
        folder=plain(folder),
        listen=listen,
        port=port,
        largest=PIECE + AROUND,
        certificate=plain(keys.certificate),
        key=plain(keys.key),
        ca=plain(keys.ca),
    )


def plain(path: Path) -> str:
    """A path as nginx can read it."""
    text = str(path.resolve())
    if not re.fullmatch(r"[\w./+@%=:-]+", text):
        raise BadValue(f"{text} holds characters that nginx's files cannot; move it.")
    return text


class Proxy:
    """An nginx of our own, with its files in a folder."""

    def __init__(self, folder: Path, host: str, port: int, keys: Keys, link: int):
        self.folder, self.keys = durable.private(folder).resolve(), keys
        self.host, self.port, self.link = host, port, link
        self.register = Register(keys.sites)
        self.process: processes.Process | None = None
        self.read = {name: self.size(name) for name in (ACCESS, ERRORS)}
        self.told: dict[tuple[str, str], float] = {}

    def start(self) -> None:
        network.check_port("--port", self.host, self.port)
        host = f"[{self.host}]" if ":" in self.host else self.host
        text = config_text(self.folder, f"{host}:{self.port}", self.link, self.keys)
        durable.write(self.folder / CONFIG, text)
        self.write_sites()
        command = [program(), "-c", str(self.folder / CONFIG), "-p", str(self.folder)]
        log = self.folder / "nginx.log"
        self.process = processes.Process(command, self.folder, log)
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        deadline = time.monotonic() + 10
        while not network.listens(near, self.port):
            if self.process.code is not None or time.monotonic() > deadline:
                words = self.process.last_words()
                self.stop()
                raise BadValue(f"nginx did not start: {words}")
            time.sleep(0.05)

    def write_sites(self) -> bool:
        """The admitted keys; whether they have changed."""
        lines = [
            f'"{entry.header}" 1; # {entry.name}\n'
            for entry in self.register.now().values()
            if not entry.expired
        ]
        path, text = self.folder / SITES, "".join(lines)
        if path.exists() and path.read_text() == text:
            return False
        durable.write(path, text)
        return True

    def look(self) -> None:
        """Start it again if it died; take in who was admitted or removed."""
        if self.process is None or self.process.code is not None:
            if self.process is not None:
                self.stop()  # its workers would keep the port
                time.sleep(0.5)
            self.start()
        elif self.write_sites():
            os.kill(self.process.process.pid, signal.SIGHUP)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()

    def refusals(self) -> Iterator[TurnedAway]:
        """Who was turned away since the last call; the same one once a minute."""
        known = {entry.header: entry.name for entry in self.register.now().values()}
        now = time.monotonic()
        for refused in [
            *(of_request(line, known) for line in self.new_lines(ACCESS)),
            *(of_error(line) for line in self.new_lines(ERRORS)),
        ]:
            if (
                refused is None
                or now - self.told.get(refused[:2], -REPEATED) < REPEATED
            ):
                continue
            if len(self.told) > 10_000:
                self.told.clear()
            self.told[refused[:2]] = now
            yield refused

    def new_lines(self, name: str) -> list[str]:
        try:
            with (self.folder / name).open("rb") as file:
                file.seek(self.read[name])
                content = file.read(LOG_LIMIT)
        except FileNotFoundError:
            return []
        content = content[: content.rfind(b"\n") + 1]
        self.read[name] += len(content)
        if self.read[name] > LOG_LIMIT and self.read[name] == self.size(name):
            os.truncate(self.folder / name, 0)  # nginx goes on at the new end
            self.read[name] = 0
        return [line.decode(errors="replace") for line in content.split(b"\n")]

    def size(self, name: str) -> int:
        path = self.folder / name
        return path.stat().st_size if path.exists() else 0


def of_request(line: str, known: dict[str, str]) -> TurnedAway | None:
    """What nginx wrote of a request that ended badly."""
    try:
        seen: dict[str, Any] = json.loads(line)
        peer, status, path = seen["peer"], int(seen["status"]), str(seen["path"])[:80]
    except (ValueError, KeyError, TypeError):
        return None
    name = known.get(seen.get("key", ""), "an unknown key")
    if seen.get("upstream"):
        said = f"the SuperLink answered {status} to {name} at {path}"
        return TurnedAway(peer, "superlink", said)
    if status == 400 and not seen.get("tls"):
        return TurnedAway(peer, "plaintext", "a request without TLS")
    if status == 400:
        return TurnedAway(peer, "header", "a header that is too long or malformed")
    if status == 401:
        return TurnedAway(peer, "key", f"a key that is not admitted, at {path}")
    if status == 403:
        return TurnedAway(peer, "path", f"{path} is not open to others")
    if status == 413:
        return TurnedAway(peer, "size", f"{name} sent more than a request may hold")
    if status >= 500 or status in (408, 499):
        return TurnedAway(peer, "broken", f"a request of {name} ended with {status}")
    return TurnedAway(peer, "request", f"a request of {name} ended with {status}")


def of_error(line: str) -> TurnedAway | None:
    """What nginx wrote of a connection that never became a request."""
    found = HANDSHAKE.match(line)
    if found is None:
        return None
    reason = found[1].rpartition(":")[2][:80]
    return TurnedAway(found[2], "tls", f"no TLS connection: {reason}")
