"""What a site keeps on its disk: one file per run, replaced as a whole."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from sagda import durable
from sagda.check import BadValue
from sagda.federation.plan import Specs
from sagda.federation.protocol.client import Cache, Pending
from sagda.federation.protocol.letters import adapter
from sagda.federation.protocol.messages import Reply, Ticket
from sagda.federation.protocol.wire import Part
from sagda.federation.server.store import flat, version_of, whole
from sagda.federation.site.site import CarriedValue


class SiteCacheFile:
    """A site's folder: what it keeps of one run."""

    def __init__(self, folder: Path, run: str, specs: Specs):
        if not (run.isalnum() and len(run) <= 64):
            raise BadValue("a run must be named by letters and digits.")
        self.path, self.specs = folder / f"run-{run}.bin", specs

    def save(self, cache: Cache) -> None:
        durable.private(self.path.parent)
        arrays: dict[str, np.ndarray] = {}
        if cache.memory is not None:
            arrays |= flat(self.specs.memory, cache.memory, "memory")
        about: dict[str, Any] = {"committed": cache.committed, "high": cache.high}
        about["memory"] = cache.memory is not None
        if cache.pending is not None:
            version, memory, reply = cache.pending
            about["pending"] = version
            about["reply"] = reply._replace(payload=None)._asdict()
            arrays |= flat(self.specs.memory, memory, "pending")
            for name, part in reply.payload.items():
                array = np.frombuffer(part.data, part.dtype).reshape(part.shape)
                arrays[f"reply/{name}"] = array
        if cache.kept is not None:
            about["kept"] = cache.kept[:3]
            arrays |= flat(self.specs.kept[cache.kept.phase], cache.kept.value, "kept")
        content = safetensors.numpy.save(arrays, {"about": json.dumps(about)})
        durable.write(self.path, hashlib.sha256(content).digest() + content)

    def load(self) -> Cache:
        """What was kept; nothing if that is missing or damaged: the server has it."""
        try:
            content = durable.read(self.path)
        except FileNotFoundError:
            return Cache()
        mark, content = content[:32], content[32:]
        if hashlib.sha256(content).digest() != mark:
            return Cache()
        arrays = safetensors.numpy.load(content)
        size = int.from_bytes(content[:8], "little")
        head = json.loads(content[8 : 8 + size])
        about = json.loads(head["__metadata__"]["about"])
        memory, pending, kept = None, None, None
        if about["memory"]:
            memory = whole(self.specs.memory, arrays, "memory")
        if "pending" in about:
            payload = {
                name.removeprefix("reply/"): Part(
                    array.dtype.newbyteorder("<").str, array.shape, array.tobytes()
                )
                for name, array in arrays.items()
                if name.startswith("reply/")
            }
            reply = adapter(Reply).validate_python(about["reply"])
            new = whole(self.specs.memory, arrays, "pending")
            version = version_of(about["pending"])
            assert version is not None
            pending = Pending(version, new, reply._replace(payload=payload))
        if "kept" in about:
            incarnation, number, phase = about["kept"]
            value = whole(self.specs.kept[phase], arrays, "kept")
            kept = CarriedValue(incarnation, number, phase, value)
        high = about["high"]
        return Cache(
            version_of(about["committed"]),
            memory,
            pending,
            None if high is None else Ticket(*high),
            kept,
        )
