"""Describes the machine, and measures the load of other programs on it."""

import os
import platform
import re
import time
from pathlib import Path

PROC = Path("/proc")
DISTURBED = 0.5  # figures are marked if others use more cores than this


def describe() -> dict:
    """Return the processor, the number of cores and the system, for publication."""
    model = None
    if (PROC / "cpuinfo").exists():
        text = (PROC / "cpuinfo").read_text()
        model = re.search(r"model name\s*:\s*(.+)", text)
    return {
        "cpu": model[1].strip() if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.system(),
    }


def all_ticks() -> int:
    """Return the busy clock ticks of all cores since the machine started."""
    _, *ticks = (PROC / "stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])
    return user + nice + system + irq + softirq + steal


def own_ticks() -> int:
    """Return the busy ticks of this process, its descendants and their sessions."""
    above, ticks = {}, {}
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue  # the process has ended
        fields = text.rpartition(")")[2].split()
        pid = int(folder.name)
        # The parent, and the leader of the session: a child may outlive its parent.
        above[pid] = {int(fields[1]), int(fields[3])}
        ticks[pid] = sum(map(int, fields[11:13]))
    own = {os.getpid()}
    while more := {pid for pid, of in above.items() if of & own} - own:
        own |= more
    return sum(ticks.get(pid, 0) for pid in own)


def others(seconds: float = 0.2) -> float:
    """Measure for `seconds` how many cores other processes use.

    The result is 0 on a system without /proc.
    """
    if not (PROC / "stat").exists():
        return 0.0
    clock, everyone, own = time.perf_counter(), all_ticks(), own_ticks()
    time.sleep(seconds)
    ticks = (all_ticks() - everyone) - (own_ticks() - own)
    spent = ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, spent / (time.perf_counter() - clock))


def stolen() -> float:
    """Return the core seconds that the host has given to other virtual machines."""
    if not (PROC / "stat").exists():
        return 0.0
    _, *ticks = (PROC / "stat").read_text().split("\n", 1)[0].split()
    return int(ticks[7]) / os.sysconf("SC_CLK_TCK")


def memory() -> dict[str, int]:
    """Return the memory of this process in bytes.

    Returns the peak (VmHWM), and the present memory without mapped files (RssAnon).
    """
    text = (PROC / "self" / "status").read_text()
    pairs = re.findall(r"^(VmHWM|RssAnon):\s+(\d+) kB", text, re.MULTILINE)
    return {name: 1024 * int(value) for name, value in pairs}
