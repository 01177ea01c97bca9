"""Limits of memory and cores are found in the groups of the process and above, however they are mounted."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ps2 import cgroups

MIB = 1 << 20
V2 = "30 23 0:26 {top} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 31 0:32 {top} {point} rw,relatime - cgroup cgroup rw,{controller}\n"
V2_ROOT, V2_G = (V2.format(top="/", point=point) for point in ("/sys/fs/cgroup", "/g"))
V1_MEMORY = V1.format(top="/", point="/sys/fs/cgroup/memory", controller="memory")
SLICE = "/sys/fs/cgroup/system.slice"
POD = "/kubepods/pod1/container2"


def tree(folder, groups, mounts, files):
    """Write what a system would have: the process's groups, what is mounted where, and files of groups."""
    for name, text in {"/proc/self/cgroup": groups, "/proc/self/mountinfo": mounts, **files}.items():
        path = folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n" if text and not text.endswith("\n") else text)
    return folder


MEMORY = {
    "v2: its own": ("0::/app", V2_ROOT, {"/sys/fs/cgroup/app/memory.max": "700"}, 700),
    "v2: the service's above": (
        "0::/system.slice/job.service/payload",
        V2_ROOT,
        {f"{SLICE}/memory.max": "900", f"{SLICE}/job.service/memory.max": "700",
         f"{SLICE}/job.service/payload/memory.max": "max"},
        700,
    ),
    "v2: memory.high": (
        "0::/app",
        V2_ROOT,
        {"/sys/fs/cgroup/app/memory.max": "900", "/sys/fs/cgroup/app/memory.high": "700"},
        700,
    ),
    "v2: a namespace's root": ("0::/", V2_ROOT, {"/sys/fs/cgroup/memory.max": "700"}, 700),
    "v2: from outside its namespace": (
        "0::/../../other",
        V2.format(top="/../..", point="/sys/fs/cgroup"),
        {"/sys/fs/cgroup/memory.max": "700"},
        700,
    ),
    "v2: no limit": ("0::/app", V2_ROOT, {"/sys/fs/cgroup/app/memory.max": "max"}, None),
    "v1: Slurm's": (
        "9:cpu,cpuacct:/slurm\n5:memory:/slurm/uid_1/job_2/step_0/task_0\n1:name=systemd:/x",
        V1_MEMORY,
        {"/sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.limit_in_bytes": "700",
         "/sys/fs/cgroup/memory/slurm/uid_1/job_2/step_0/memory.limit_in_bytes": "800",
         "/sys/fs/cgroup/memory/slurm/uid_1/job_2/step_0/task_0/memory.limit_in_bytes": str(2**63 - 4096)},
        700,
    ),
    "v1: a container's, seen from outside": (
        f"5:memory:{POD}",
        V1.format(top=POD, point="/sys/fs/cgroup/memory", controller="memory"),
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "700"},
        700,
    ),
    "v1: a pod's, above what is mounted": (
        f"5:memory:{POD}",
        V1.format(top=POD, point="/sys/fs/cgroup/memory", controller="memory"),
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "900",
         "/sys/fs/cgroup/memory/memory.stat": "cache 1\nhierarchical_memory_limit 700"},
        700,
    ),
    "v1: a container's, whose path is another": (
        "5:memory:/docker/abc",
        V1.format(top="/lxc/1", point="/sys/fs/cgroup/memory", controller="memory"),
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "700"},
        700,
    ),
    "hybrid: memory is version 1's": (
        "4:memory:/job\n0::/job",
        V1_MEMORY + V2.format(top="/", point="/sys/fs/cgroup/unified"),
        {"/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "700", "/sys/fs/cgroup/unified/job/cgroup.procs": "1"},
        700,
    ),
    "hybrid: memory is version 2's": (
        "4:pids:/job\n0::/job",
        V1.format(top="/", point="/sys/fs/cgroup/pids", controller="pids")
        + V2.format(top="/", point="/sys/fs/cgroup/unified"),
        {"/sys/fs/cgroup/unified/job/memory.max": "700"},
        700,
    ),
    "a mount point with a blank": (
        "0::/app",
        V2.format(top="/", point=r"/my\040groups"),
        {"/my groups/app/memory.max": "700"},
        700,
    ),
    "no groups": ("", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", {}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", MEMORY.values(), ids=MEMORY)
def test_memory_limit_when_groups_nest_then_the_smallest_counts(tmp_path, case):
    groups, mounts, files, expected = case
    assert cgroups.memory_limit_bytes(tree(tmp_path, groups, mounts, files)) == expected


def test_memory_limit_when_there_is_no_proc_then_there_is_none(tmp_path):
    assert (cgroups.memory_limit_bytes(tmp_path), cgroups.core_quota(tmp_path)) == (None, None)


@pytest.mark.parametrize(
    ("groups", "mounts", "files"),
    [
        ("0::/a/b", V2_G, {
            "/g/a/memory.max": "1000", "/g/a/memory.current": "900", "/g/a/memory.stat": "inactive_file 200",
            "/g/a/b/memory.max": "500", "/g/a/b/memory.current": "10"}),
        ("2:memory:/a", V1.format(top="/", point="/g", controller="memory"), {
            "/g/a/memory.limit_in_bytes": "1000", "/g/a/memory.usage_in_bytes": "900",
            "/g/a/memory.stat": "total_inactive_file 200"}),
    ],
    ids=["v2", "v1"],
)  # fmt: skip
def test_memory_room_when_group_is_nearly_full_then_counts(tmp_path, groups, mounts, files):
    assert cgroups.free_memory_bytes(tree(tmp_path, groups, mounts, files)) == 300


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        ("0::/a/b", V2_G, {"/g/a/cpu.max": "150000 100000", "/g/a/b/cpu.max": "max 100000"}, 1.5),
        ("3:cpu,cpuacct:/a", V1.format(top="/", point="/g", controller="cpu,cpuacct"),
         {"/g/a/cpu.cfs_quota_us": "50000", "/g/a/cpu.cfs_period_us": "100000"}, 0.5),
        ("3:cpu,cpuacct:/a", V1.format(top="/", point="/g", controller="cpu,cpuacct"),
         {"/g/a/cpu.cfs_quota_us": "-1", "/g/a/cpu.cfs_period_us": "100000"}, None),
    ],
    ids=["v2", "v1", "v1 without"],
)  # fmt: skip
def test_cores_when_groups_have_a_quota_then_that_counts(tmp_path, groups, mounts, files, expected):
    assert cgroups.core_quota(tree(tmp_path, groups, mounts, files)) == expected


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (0.5, 1), (2.5, 3), (64.0, 8)])
def test_cores_when_a_quota_is_broken_then_it_is_rounded_up(monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cgroups, "_own_quota", lambda: quota)
    assert cgroups.usable_cores() == expected


LOOK = "from ps2.server.memory import available_bytes, free_bytes; print(available_bytes(), free_bytes())"


def _in_address_space() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))


def _real_group() -> Path | None:
    """Return the folder of this process's group of memory, if groups may be made in it."""
    for group in cgroups._groups("memory", cgroups.ROOT):
        names = ("memory.max", "memory.limit_in_bytes")
        if any((group.folder / name).exists() for name in names) and os.access(group.folder, os.W_OK):
            return group.folder
    return None


@pytest.fixture
def limited():
    """Yield what limits a process to 700 MiB by two groups, one in the other; where none may be made, ``ulimit -v``."""
    own = _real_group()
    if own is None:
        yield _in_address_space, 6 << 30
        return
    outer = own / f"ps2-test-{os.getpid()}"
    inner = outer / "inner"
    inner.mkdir(parents=True)
    name = next((name for name in ("memory.max", "memory.limit_in_bytes") if (outer / name).exists()), None)
    try:
        if name is None:  # version 2, where the group has processes and so gives nothing to groups below
            yield _in_address_space, 6 << 30
        else:
            (outer / name).write_text(str(700 * MIB))
            yield lambda: (inner / "cgroup.procs").write_text(str(os.getpid())), 700 * MIB
    finally:
        inner.rmdir()
        outer.rmdir()


def test_available_when_a_real_group_is_limited_then_it_is_found(limited):
    enter, most = limited
    message = subprocess.run([sys.executable, "-c", LOOK], preexec_fn=enter, capture_output=True, text=True, check=True)
    available, free = map(int, re.findall(r"\d+", message.stdout))
    assert 0 < free <= available <= most


def test_available_when_address_space_is_limited_then_found():
    message = subprocess.run(
        [sys.executable, "-c", LOOK], preexec_fn=_in_address_space, capture_output=True, text=True, check=True
    )
    available, free = map(int, re.findall(r"\d+", message.stdout))
    assert 0 < free <= available < 6 << 30
