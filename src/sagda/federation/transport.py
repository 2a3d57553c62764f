"""`Transport`: the methods that carry letters to sites, and answers back to the server.

A transport knows the names of sites, but no algorithms and no configurations. Letters
may arrive in any order, twice, late or never: the rules in `federation/protocol` keep
the run exact in all these cases. `federation.flower` implements `Transport` over
Flower.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from sagda.federation.events import Notify
from sagda.federation.protocol.letters import Introduction, Letter


class Transport(Protocol):
    """Carries letters between the server and the sites, which it knows by name.

    `framing` counts all bytes that are not arrays, in both directions, since the start:
    headers, notes and what the network adds.
    """

    framing: int

    def exchange(
        self,
        letters: Mapping[str, Letter],
        *,
        largest: int,
        seconds: float | None = None,
    ) -> Iterator[tuple[str, Letter]]:
        """Send each letter to its site, and yield (name, answer) as answers arrive.

        Args:
            letters: the letters by name of the site.
            largest: the limit of an answer in bytes. Longer answers are not read.
            seconds: the time limit of this exchange. None: the transport's timeout.

        For a site that failed, is not connected or was late, the transport yields a
        `Fault` as the answer. It may also yield nothing for such a site.
        """
        ...

    def arrivals(self, *, moments: bool = False) -> list[Introduction]:
        """Return the introductions that arrived since the last call.

        The transport asks every newly connected site to introduce itself. With
        `moments`, it also asks for the mean and the squares of each feature.
        """
        ...

    def barred(self, names: Iterable[str]) -> list[str]:
        """Return the sites among `names` that may no longer take part."""
        ...


# A function that makes the transport of a run from two arguments: the time limit of an
# exchange in seconds, and the listener.
Connect = Callable[[float, Notify], Transport]
