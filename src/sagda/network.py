"""HOST:PORT addresses, free ports, and sentences for ports that are taken.

Simulations of several processes and federations share these. Nothing here sends
anything; see `simulator/processes.py` and `federation/flower/processes.py` for that.
"""

import socket

from sagda.check import BadValue

LOOPBACK = ("127.0.0.1", "localhost")


def address(flag: str, text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; `flag` names the source in the error message."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise BadValue(
            f"`{flag}` must be HOST:PORT, as in 10.0.0.1:9876, got {text!r}."
        )
    return host.strip("[]"), int(port)


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_port(flag: str, host: str, port: int) -> None:
    """Raise `BadValue` if this machine cannot listen on `port` of `host`."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, *_, where = addresses[0]
        with socket.socket(family, kind) as probe:
            # Without this, a port counts as taken for a minute after its last use.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise BadValue(
            f"`{flag}`: this process cannot listen on port {port} of {host} "
            f"({error.strerror}). Choose another port, or an address of this machine."
        ) from None


def listens(host: str, port: int) -> bool:
    """Whether a connection to `port` of `host` is accepted now."""
    try:
        socket.create_connection((host, port), 0.5).close()
    except OSError:
        return False
    return True
