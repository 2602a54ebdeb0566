"""How many threads a call may use, and how to change it.

The count is the smallest of: CPUs in this process's affinity mask, the cgroup's CPU quota rounded up, and
PLANISH_NUM_THREADS or else OMP_NUM_THREADS. `set_num_threads` overrides the two variables, never the
machine's own limits silently: asking for more threads than CPUs is allowed, and then waiting threads sleep at
once instead of spinning.
"""
from __future__ import annotations

import os
from pathlib import Path

from planish import knobs
from planish.runtime.pool import MAX_THREADS

_CGROUP = Path("/sys/fs/cgroup")
_chosen: int | None = None


def available_cpus(cgroup_root: Path = _CGROUP) -> int:
    """CPUs this process may keep busy: affinity mask and cgroup version 2 quota, at least 1."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(cgroup_root)
    return max(1, cpus if quota is None else min(cpus, quota))


def _cgroup_quota(root: Path) -> int | None:
    """The tightest cpu.max from this process's group up to the root, in whole CPUs rounded up; None without
    one."""
    quotas = [q for q in map(_quota_in, _groups(root)) if q is not None]
    return min(quotas, default=None)


def _groups(root: Path) -> list[Path]:
    """This process's cgroup folder and its parents. Inside a container the path may not exist: then only the
    root."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return [root]
    path = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    parts = [p for p in path.split("/") if p not in ("", "..")]
    return [root.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]


def _quota_in(folder: Path) -> int | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return None if limit == "max" else max(1, -(-int(limit) // int(period)))
    except (OSError, ValueError):
        return None


def get_num_threads() -> int:
    """Threads that a parallel call uses."""
    if _chosen is not None:
        return _chosen
    wanted = knobs.num_threads or knobs.omp_num_threads
    most = available_cpus()
    return min(most if wanted is None else min(wanted, most), MAX_THREADS)


def set_num_threads(count: int) -> None:
    """Use `count` threads per call from now on, for the whole process. ValueError outside 1 to
    MAX_THREADS."""
    global _chosen
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_THREADS:
        raise ValueError(f"the number of threads is from 1 to {MAX_THREADS}, not {count!r}")
    _chosen = count
    from planish.runtime.native import running

    if (started := running()) is not None:
        started.apply_threads(count)
