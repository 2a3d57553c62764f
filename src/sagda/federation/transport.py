"""The one protocol that a transport implements to carry letters to sites and back.

A transport knows sites by name, and neither algorithms nor configurations. Letters may
arrive in any order, twice, late or never: the rules of `federation.protocol` keep the
run exact all the same. `federation.flower` implements this protocol over Flower.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from sagda.federation.events import Notify
from sagda.federation.protocol.letters import Introduction, Letter


class Transport(Protocol):
    """Carries letters between the server and the sites behind their names.

    `framing` counts the bytes so far, in both directions, that are not arrays: headers,
    notes and whatever the network adds.
    """

    framing: int

    def exchange(
        self,
        letters: Mapping[str, Letter],
        *,
        largest: int,
        seconds: float | None = None,
    ) -> Iterator[tuple[str, Letter]]:
        """Send a letter to each name, and yield (name, answer) as answers arrive.

        Args:
            letters: by name of the site.
            largest: bytes that one answer may have; longer ones are not read.
            seconds: until the exchange ends, in place of the transport's own timeout.

        The transport answers with a `Fault` for a site that failed, is not connected or
        was late. It may also yield nothing for it.
        """
        ...

    def arrivals(self, *, moments: bool = False) -> list[Introduction]:
        """The introductions that came since the last call.

        The transport asks every newly connected site to introduce itself, with the
        moments of its features if `moments`.
        """
        ...

    def barred(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that may no longer take part."""
        ...


# Makes the transport of a run: (seconds that an exchange may take, listener).
Connect = Callable[[float, Notify], Transport]
