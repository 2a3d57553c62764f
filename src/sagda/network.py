"""HOST:PORT addresses, and checks of ports.

Simulations with several processes and federations use these functions. This module
sends no data: see `simulator/processes.py` and `federation/flower/processes.py`.
"""

import socket

from sagda.check import BadValue

LOOPBACK = ("127.0.0.1", "localhost")


def address(flag: str, text: str) -> tuple[str, int]:
    """Split `text`, written HOST:PORT, into host and port.

    The error message refers to `flag`, the option that the address was given to.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise BadValue(
            f"`{flag}` must be HOST:PORT, as in 10.0.0.1:9876, got {text!r}."
        )
    return host.strip("[]"), int(port)


def free_port() -> int:
    """Return a port of 127.0.0.1 that no program uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_port(flag: str, host: str, port: int) -> None:
    """Raise `BadValue` if this machine cannot listen on `port` of `host`."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, *_, where = addresses[0]
        with socket.socket(family, kind) as probe:
            # Without this, a port counts as used for a minute after it was closed.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise BadValue(
            f"`{flag}`: this process cannot listen on port {port} of {host} "
            f"({error.strerror}); choose another port, or an address of this machine."
        ) from None


def listens(host: str, port: int) -> bool:
    """Return whether a program accepts connections on `port` of `host` now."""
    try:
        socket.create_connection((host, port), 0.5).close()
    except OSError:
        return False
    return True
