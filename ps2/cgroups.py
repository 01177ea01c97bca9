"""What control groups let this process have: its own and all above that one, of version 1, version 2 or a mix of both.

A group's limit holds for all groups below it, so the smallest on the way up counts: systemd, Slurm and Kubernetes set
one on a group of which the process's own is a part.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path("/")
# In names of mount points: a blank, a tab, a line's end or a backslash.
ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class _Group:
    """One control group: its folder, and which version's files are there."""

    folder: Path
    is_v2: bool

    def number(self, name: str) -> int | None:
        """Return the number in a file; None if there is none, as "max" is."""
        text = _read(self.folder / name).strip()
        return int(text) if text.lstrip("-").isdecimal() else None

    def stat(self, name: str) -> int | None:
        """Return a number of the file memory.stat."""
        for line in _read(self.folder / "memory.stat").splitlines():
            key, _, value = line.partition(" ")
            if key == name and value.isdecimal():
                return int(value)
        return None

    def memory_bytes(self) -> int | None:
        """Return the most that its processes may take; None: any."""
        if self.is_v2:
            # Above memory.high the system slows processes down until they hardly move.
            found = [self.number("memory.max"), self.number("memory.high")]
        else:
            # The latter counts groups above the topmost that is mounted here, too.
            found = [self.number("memory.limit_in_bytes"), self.stat("hierarchical_memory_limit")]
        return min((limit for limit in found if limit is not None), default=None)

    def used_bytes(self) -> int:
        """Return what its processes have taken, without what the system gives back by itself: files read before."""
        if self.is_v2:
            used, cached = self.number("memory.current"), self.stat("inactive_file")
        else:
            used, cached = self.number("memory.usage_in_bytes"), self.stat("total_inactive_file")
        return max(0, (used or 0) - (cached or 0))

    def cores(self) -> float | None:
        """Return how many cores' time its processes get; None: as much as there is."""
        if self.is_v2:
            quota, _, period = _read(self.folder / "cpu.max").strip().partition(" ")
        else:
            quota, period = (_read(self.folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if not quota.isdecimal() or not period.isdecimal() or not int(period):
            return None  # "max", or -1
        return int(quota) / int(period)


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """Return the most memory that the groups of this process allow; None if they set no limit.

    Args:
        root: folder that has the system's files.
    """
    limits = (group.memory_bytes() for group in _groups("memory", root))
    return min((limit for limit in limits if limit is not None), default=None)


def memory_room_bytes(root: Path = ROOT) -> int | None:
    """Return how much memory the groups allow beside what their processes have taken; None if they set no limit."""
    rooms = [
        max(0, limit - group.used_bytes())
        for group in _groups("memory", root)
        if (limit := group.memory_bytes()) is not None
    ]
    return min(rooms, default=None)


def core_quota(root: Path = ROOT) -> float | None:
    """Return how many cores' time the groups of this process get; None if they set no limit."""
    quotas = (group.cores() for group in _groups("cpu", root))
    return min((quota for quota in quotas if quota is not None), default=None)


def usable_cores() -> int:
    """Return on how many cores' time threads of this process can count, at least one."""
    affinity, quota = len(os.sched_getaffinity(0)), _own_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


@cache
def _own_quota() -> float | None:
    return core_quota()


def _groups(controller: str, root: Path) -> Iterator[_Group]:
    """Yield the groups of this process that a controller may limit: its own, and those above as far as mounted."""
    own = _own_paths(controller, root)
    mounts = list(_mounts(controller, root))
    for is_v2 in (True, False):
        found = [(point, top) for version, point, top in mounts if version == is_v2]
        path = own.get(is_v2)
        if path is None:
            continue
        # In a container, what is mounted may be a group's part of the tree, and the path be seen from outside it.
        fitting = [(point, path.relative_to(top)) for point, top in found if path.is_relative_to(top)]
        for point, below in fitting or [(point, PurePosixPath()) for point, _ in found]:
            for folder in (below, *below.parents) if below.parts else (below,):
                yield _Group(root / point.relative_to("/") / folder, is_v2)


def _own_paths(controller: str, root: Path) -> dict[bool, PurePosixPath]:
    """Return by whether it is version 2 which group the process is in."""
    found = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        # The process may be outside of what its namespace shows: "/../other".
        place = PurePosixPath("/") if ".." in path.split("/") else PurePosixPath(path)
        if number == "0" and not names:
            found[True] = place
        elif controller in names.split(","):
            found[False] = place
    return found


def _mounts(controller: str, root: Path) -> Iterator[tuple[bool, PurePosixPath, PurePosixPath]]:
    """Yield where a controller's groups are mounted: whether that is version 2, the mount point, and which group."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *_, options) = before.split(" "), after.split(" ")
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            top, point = (ESCAPED.sub(lambda found: chr(int(found[1], 8)), name) for name in fields[3:5])
            yield kind == "cgroup2", PurePosixPath(point), PurePosixPath(top)


def _read(path: Path) -> str:
    """Return what a file says; "" if it is not there, or not for this process."""
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""
