"""A site's durable state: one file per run, replaced as a whole (R12).

A missing or damaged file is not an error: the site then answers with a mismatch, and
the server sends the memory from its table (R7).
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from sagda import durable
from sagda.check import BadValue
from sagda.federation.plan import Specs
from sagda.federation.protocol.client import Cache, PendingMemory
from sagda.federation.protocol.letters import adapter, version_of
from sagda.federation.protocol.messages import Reply, Ticket
from sagda.federation.protocol.wire import Part
from sagda.federation.site.site import CarriedValue

DIGEST = 32  # bytes of sha256 that the file begins with
HEADER = 8  # bytes with the length of a safetensors header


class SiteCacheFile:
    """The file in a site's folder that holds its `Cache` of one run."""

    def __init__(self, folder: Path, run: str, specs: Specs):
        # The run's name comes from the server, and becomes part of a path.
        if not (run.isalnum() and len(run) <= 64):
            raise BadValue(
                "a run's name must be 1 to 64 letters and digits, got another from the "
                "server; check which server this site joined."
            )
        self.path, self.specs = folder / f"run-{run}.bin", specs

    def save(self, cache: Cache) -> None:
        """R12: make a cache durable; returns only when it is."""
        durable.private(self.path.parent)
        arrays: dict[str, np.ndarray] = {}
        if cache.memory is not None:
            arrays |= self.specs.memory.named(cache.memory, "memory")
        about: dict[str, Any] = {"committed": cache.committed, "high": cache.high}
        about["memory"] = cache.memory is not None
        if cache.pending is not None:
            version, memory, reply = cache.pending
            about["pending"] = version
            # The reply is stored whole, to be sent again bit for bit (R9).
            about["reply"] = reply._replace(payload=None)._asdict()
            arrays |= self.specs.memory.named(memory, "pending")
            for name, part in reply.payload.items():
                array = np.frombuffer(part.data, part.dtype).reshape(part.shape)
                arrays[f"reply/{name}"] = array
        if cache.carried is not None:
            about["carried"] = cache.carried[:3]
            spec = self.specs.carried[cache.carried.phase]
            arrays |= spec.named(cache.carried.value, "carried")
        content = safetensors.numpy.save(arrays, {"about": json.dumps(about)})
        durable.write(self.path, hashlib.sha256(content).digest() + content)

    def load(self) -> Cache:
        """The cache; an empty one if the file is missing or damaged."""
        try:
            content = durable.read(self.path)
        except FileNotFoundError:
            return Cache()
        digest, content = content[:DIGEST], content[DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            return Cache()
        arrays = safetensors.numpy.load(content)
        size = int.from_bytes(content[:HEADER], "little")
        header = json.loads(content[HEADER : HEADER + size])
        about = json.loads(header["__metadata__"]["about"])
        memory = carried = None
        if about["memory"]:
            memory = self.specs.memory.restored(arrays, "memory")
        if "carried" in about:
            incarnation, round, phase = about["carried"]
            value = self.specs.carried[phase].restored(arrays, "carried")
            carried = CarriedValue(
                incarnation=incarnation, round=round, phase=phase, value=value
            )
        return Cache(
            committed=version_of(about["committed"]),
            memory=memory,
            pending=self.pending(about, arrays) if "pending" in about else None,
            high=None if about["high"] is None else Ticket(*about["high"]),
            carried=carried,
        )

    def pending(
        self, about: dict[str, Any], arrays: dict[str, np.ndarray]
    ) -> PendingMemory | None:
        """The memory that is pending, with the reply that offered it."""
        version = version_of(about["pending"])
        if version is None:
            return None
        payload = {
            name.removeprefix("reply/"): Part(
                array.dtype.newbyteorder("<").str, array.shape, array.tobytes()
            )
            for name, array in arrays.items()
            if name.startswith("reply/")
        }
        reply = adapter(Reply).validate_python(about["reply"])
        return PendingMemory(
            version=version,
            memory=self.specs.memory.restored(arrays, "pending"),
            reply=reply._replace(payload=payload),
        )
