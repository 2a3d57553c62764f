"""The machine: what it is, and how busy others keep it."""

import os
import platform
import re
import time
from pathlib import Path

PROC = Path("/proc")
DISTURBED = 0.5  # cores used by others from which on a figure is marked


def describe() -> dict:
    """What may be published of the machine."""
    found = None
    if (PROC / "cpuinfo").exists():
        text = (PROC / "cpuinfo").read_text()
        found = re.search(r"model name\s*:\s*(.+)", text)
    return {
        "cpu": found[1].strip() if found else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.system(),
    }


def all_ticks() -> int:
    """Busy ticks of all cores since the machine started."""
    _, *ticks = (PROC / "stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])
    return user + nice + system + irq + softirq + steal


def own_ticks() -> int:
    """Those of this process, all that descend from it, and their sessions."""
    above, ticks = {}, {}
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue  # it has ended
        fields = text.rpartition(")")[2].split()
        pid = int(folder.name)
        # Its parent and the leader of its session: a child may have been left behind.
        above[pid] = {int(fields[1]), int(fields[3])}
        ticks[pid] = sum(map(int, fields[11:13]))
    own = {os.getpid()}
    while more := {pid for pid, of in above.items() if of & own} - own:
        own |= more
    return sum(ticks.get(pid, 0) for pid in own)


def others(seconds: float = 0.2) -> float:
    """Cores that other processes use, watched for a moment; 0 where none can tell."""
    if not (PROC / "stat").exists():
        return 0.0
    clock, everyone, own = time.perf_counter(), all_ticks(), own_ticks()
    time.sleep(seconds)
    ticks = (all_ticks() - everyone) - (own_ticks() - own)
    spent = ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, spent / (time.perf_counter() - clock))


def stolen() -> float:
    """Seconds since the machine started that its host gave to others, all cores."""
    if not (PROC / "stat").exists():
        return 0.0
    _, *ticks = (PROC / "stat").read_text().split("\n", 1)[0].split()
    return int(ticks[7]) / os.sysconf("SC_CLK_TCK")


def memory() -> dict[str, int]:
    """Bytes of this process: the most ever held, and those that are no file's."""
    text = (PROC / "self" / "status").read_text()
    pairs = re.findall(r"^(VmHWM|RssAnon):\s+(\d+) kB", text, re.MULTILINE)
    return {name: 1024 * int(value) for name, value in pairs}
