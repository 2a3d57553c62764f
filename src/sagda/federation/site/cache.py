"""A site's durable state: one file per run, which is always replaced as a whole.

A site writes the file before it answers (rule R12 in `sagda.federation.protocol`). A
missing or damaged file is not an error. The site then answers with a mismatch, and the
server sends the site's memory from its table (rule R7). The content of the state is
`Cache` in `sagda.federation.protocol.client`.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import safetensors.numpy

from sagda import durable
from sagda.check import BadValue
from sagda.federation.plan import Specs
from sagda.federation.protocol.client import Cache
from sagda.federation.protocol.letters import adapter
from sagda.federation.protocol.wire import Parcel, Part
from sagda.federation.site.site import CarriedValue

DIGEST = 32  # bytes of the sha256 digest with which the file begins
HEADER = 8  # bytes for the length of the safetensors header


class SiteCacheFile:
    """The file in a site's folder with the site's `Cache` for one run."""

    def __init__(self, folder: Path, run: str, specs: Specs):
        # The name of the run comes from the server and becomes part of a path.
        if not (run.isalnum() and len(run) <= 64):
            raise BadValue(
                "the name of a run must be 1 to 64 letters and digits, got other "
                "characters from the server; check which server this site joined."
            )
        self.path, self.specs = folder / f"run-{run}.bin", specs

    def save(self, cache: Cache) -> None:
        """Write `cache` to the file. Returns only when it is durable (rule R12)."""
        durable.private(self.path.parent)
        # The JSON text is the cache without its arrays. It says if there is a memory.
        arrays: dict[str, np.ndarray] = {}
        text, memory = (
            cache._replace(memory=cache.memory is not None),
            self.specs.memory,
        )
        if cache.memory is not None:
            arrays |= memory.named(cache.memory, "memory")
        if cache.pending is not None:
            pending = cache.pending
            arrays |= memory.named(pending.memory, "pending")
            # The whole reply is stored, so that it can be repeated exactly (rule R9).
            for name, part in pending.reply.payload.items():
                array = np.frombuffer(part.data, part.dtype).reshape(part.shape)
                arrays[f"reply/{name}"] = array
            reply = pending.reply._replace(payload=None)
            text = text._replace(pending=pending._replace(memory=None, reply=reply))
        if cache.carried is not None:
            spec = self.specs.carried[cache.carried.phase]
            arrays |= spec.named(cache.carried.value, "carried")
            text = text._replace(carried=cache.carried._replace(value=None))
        content = safetensors.numpy.save(arrays, {"cache": json.dumps(text)})
        durable.write(self.path, hashlib.sha256(content).digest() + content)

    def load(self) -> Cache:
        """Read the cache. Returns an empty one if the file is missing or damaged."""
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
        cache = adapter(Cache).validate_json(header["__metadata__"]["cache"])
        memory, pending, carried = None, cache.pending, cache.carried
        if cache.memory:
            memory = self.specs.memory.restored(arrays, "memory")
        if pending is not None:
            reply = pending.reply._replace(payload=parts_of(arrays, "reply/"))
            value = self.specs.memory.restored(arrays, "pending")
            pending = pending._replace(memory=value, reply=reply)
        if carried is not None:
            carried = adapter(CarriedValue).validate_python(carried)
            value = self.specs.carried[carried.phase].restored(arrays, "carried")
            carried = carried._replace(value=value)
        return cache._replace(memory=memory, pending=pending, carried=carried)


def parts_of(arrays: dict[str, np.ndarray], prefix: str) -> Parcel:
    """Return the arrays whose names begin with `prefix`, as a parcel without prefix."""
    return {
        name.removeprefix(prefix): Part(
            array.dtype.newbyteorder("<").str, array.shape, array.tobytes()
        )
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
