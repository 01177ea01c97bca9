"""Limits of control groups (version 1, version 2 or both) on this process.

A group's limit applies to all groups below it, so the smallest limit of the process's group and its ancestors counts.
Systemd, Slurm and Kubernetes set limits on an ancestor of the process's own group.
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
# Escaped characters in names of mount points: blank, tab, newline and backslash.
ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class _Group:
    """One control group: its folder, and whether the group is of cgroups version 2."""

    folder: Path
    is_v2: bool

    def read_number(self, name: str) -> int | None:
        """Return the number in a file of the group; None if the file has no number ("max")."""
        text = _read(self.folder / name).strip()
        return int(text) if text.lstrip("-").isdecimal() else None

    def read_stat(self, name: str) -> int | None:
        """Return a number from the file memory.stat; None if it is missing."""
        for line in _read(self.folder / "memory.stat").splitlines():
            key, _, value = line.partition(" ")
            if key == name and value.isdecimal():
                return int(value)
        return None

    def memory_bytes(self) -> int | None:
        """Return the memory limit of the group; None if there is none."""
        if self.is_v2:
            # Above memory.high, the system slows processes down to a near standstill.
            limits = [self.read_number("memory.max"), self.read_number("memory.high")]
        else:
            # hierarchical_memory_limit includes the limits of ancestors that this container does not mount.
            limits = [self.read_number("memory.limit_in_bytes"), self.read_stat("hierarchical_memory_limit")]
        return min((limit for limit in limits if limit is not None), default=None)

    def used_bytes(self) -> int:
        """Return the memory in use by the group, without file caches that the system frees when it needs memory."""
        if self.is_v2:
            used, cached = self.read_number("memory.current"), self.read_stat("inactive_file")
        else:
            used, cached = self.read_number("memory.usage_in_bytes"), self.read_stat("total_inactive_file")
        return max(0, (used or 0) - (cached or 0))

    def cores(self) -> float | None:
        """Return the CPU quota of the group in cores; None if there is none."""
        if self.is_v2:
            quota, _, period = _read(self.folder / "cpu.max").strip().partition(" ")
        else:
            quota, period = (_read(self.folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if not quota.isdecimal() or not period.isdecimal() or not int(period):
            return None  # "max", or -1
        return int(quota) / int(period)


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """Return the memory limit of this process's groups; None if they set none.

    Args:
        root: the folder with /proc and /sys; tests use another one.
    """
    limits = (group.memory_bytes() for group in _groups("memory", root))
    return min((limit for limit in limits if limit is not None), default=None)


def free_memory_bytes(root: Path = ROOT) -> int | None:
    """Return how much more memory this process's groups allow; None if they set no limit."""
    limits = [(group, group.memory_bytes()) for group in _groups("memory", root)]
    return min((max(0, limit - group.used_bytes()) for group, limit in limits if limit is not None), default=None)


def core_quota(root: Path = ROOT) -> float | None:
    """Return the CPU quota of this process's groups in cores; None if they set none."""
    quotas = (group.cores() for group in _groups("cpu", root))
    return min((quota for quota in quotas if quota is not None), default=None)


def usable_cores() -> int:
    """Return the number of cores that this process may use: CPU affinity and quota, at least 1."""
    affinity, quota = len(os.sched_getaffinity(0)), _own_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


@cache
def _own_quota() -> float | None:
    return core_quota()


def _groups(controller: str, root: Path) -> Iterator[_Group]:
    """Yield this process's group for a controller, and all mounted ancestors of the group."""
    mounts = list(_mounts(controller, root))
    for is_v2, path in sorted(_own_paths(controller, root).items(), reverse=True):
        version_mounts = [(point, group) for version, point, group in mounts if version == is_v2]
        # A container may mount only a part of the tree of groups, while ``path`` is the path outside of the container.
        matching = [(point, path.relative_to(group)) for point, group in version_mounts if path.is_relative_to(group)]
        for point, group_path in matching or [(point, PurePosixPath()) for point, _ in version_mounts]:
            for folder in (group_path, *group_path.parents) if group_path.parts else (group_path,):
                yield _Group(root / point.relative_to("/") / folder, is_v2)


def _own_paths(controller: str, root: Path) -> dict[bool, PurePosixPath]:
    """Return the path of the process's group in each version of cgroups; the key is True for version 2."""
    groups = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        # A group outside of the process's cgroup namespace has a path such as "/../other".
        group_path = PurePosixPath("/") if ".." in path.split("/") else PurePosixPath(path)
        if number == "0" and not names:
            groups[True] = group_path
        elif controller in names.split(","):
            groups[False] = group_path
    return groups


def _mounts(controller: str, root: Path) -> Iterator[tuple[bool, PurePosixPath, PurePosixPath]]:
    """Yield the mounts of a controller: True for version 2, the mount point, and the mounted group."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields, (kind, *_, options) = mount.split(" "), filesystem.split(" ")
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            group, point = (ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), name) for name in fields[3:5])
            yield kind == "cgroup2", PurePosixPath(point), PurePosixPath(group)


def _read(path: Path) -> str:
    """Return the text of a file; "" if it is missing or not readable."""
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""
