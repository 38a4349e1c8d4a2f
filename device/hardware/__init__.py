"""The hardware of this machine: processors, memory, power, heat, and the engines' own lists of processors they can compute on.

The readers for Linux take the root of a file system, so that tests can show them another machine's /proc and /sys. This module reads the
small files in them, and the limits of this process's control groups. A file may be missing, unreadable or empty at any moment. Containers,
systemd and job schedulers set the limits of control groups. Both versions are read where they are mounted by convention, below
/sys/fs/cgroup: https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/index.html. A group's
limits bind all groups inside it.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def read_text(path: Path) -> str | None:
    """Return the file's text, stripped; None if it is missing, unreadable or empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def read_integer(path: Path) -> int | None:
    """Return the file's number; None if there is none."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def entries(folder: Path) -> Iterator[Path]:
    """Yield the paths in a folder, sorted; none if there is no such folder."""
    try:
        found = sorted(folder.iterdir())
    except OSError:
        found = []
    yield from found


_CREDIBLE_CELSIUS = range(1, 150)
"""Drivers report 0, -273 or 255 degrees where they know nothing."""


def read_celsius(path: Path) -> float | None:
    """Return a sensor's temperature, which the file states in thousandths of a degree; None if there is no credible one."""
    thousandths = read_integer(path)
    return None if thousandths is None or thousandths // 1000 not in _CREDIBLE_CELSIUS else thousandths / 1000


def zone_limits(zone: Path) -> tuple[float | None, float | None]:
    """Return where performance is held back and where the device must cool down, by the trip points of a thermal zone, by which the
    kernel itself throttles and switches off. An `active` trip point only starts a fan."""
    trips: dict[str | None, float] = {}
    for kind_file in zone.glob("trip_point_*_type"):
        kind, celsius = read_text(kind_file), read_celsius(kind_file.with_name(kind_file.name.replace("_type", "_temp")))
        if celsius is not None:
            trips[kind] = min(celsius, trips.get(kind, celsius))
    return trips.get("passive"), min((trips[kind] for kind in ("hot", "critical") if kind in trips), default=None)


def is_linux(root: Path) -> bool:
    """Return True if `root` is the root of a Linux system."""
    return is_there(root / "proc")


def is_there(path: Path) -> bool:
    """Return True if the path exists and may be looked at. Android forbids apps parts of /sys, for which `Path.exists` raises an error."""
    return os.path.exists(path)


_MOUNT = "sys/fs/cgroup"


def cpu_quota(root: Path) -> float | None:
    """Return the cores' worth of time that the process may take; None: no limit."""
    unified = (_quota_of(read_text(folder / "cpu.max") or "") for folder in _unified(root))
    legacy = (
        _quota_of(f"{read_text(folder / 'cpu.cfs_quota_us')} {read_text(folder / 'cpu.cfs_period_us')}") for folder in _legacy(root, "cpu")
    )
    return min((quota for quota in (*unified, *legacy) if quota is not None), default=None)


def _quota_of(text: str) -> float | None:
    """Parse `QUOTA PERIOD`, in microseconds. A quota or period that is no positive number means no limit."""
    quota, _, period = text.partition(" ")
    if not quota.isdecimal() or not period.isdecimal() or not int(quota) or not int(period):
        return None
    return int(quota) / int(period)


def memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield, for each limited group, the bytes that it may take and the bytes that it can still take.

    The page cache that the kernel would give back first counts as free.
    """
    for folder in _unified(root):
        yield from _limit(folder, "memory.max", "memory.current", "inactive_file")
    for folder in _legacy(root, "memory"):
        yield from _limit(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _limit(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> Iterator[tuple[int, int]]:
    limit, usage = read_integer(folder / limit_name), read_integer(folder / usage_name)
    if limit is None or usage is None:
        return
    statistics = dict(line.split(" ", 1) for line in (read_text(folder / "memory.stat") or "").splitlines() if " " in line)
    cache = int(statistics.get(cache_name, "0"))
    yield limit, max(limit - max(usage - cache, 0), 0)


def _unified(root: Path) -> Iterator[Path]:
    """Yield the groups of this process in version 2, the innermost first."""
    if is_there(root / _MOUNT / "cgroup.controllers"):
        for controllers, path in _memberships(root):
            if not controllers:
                yield from _with_parents(root / _MOUNT, path)


def _legacy(root: Path, controller: str) -> Iterator[Path]:
    """Yield the groups of this process for one controller of version 1, the innermost first."""
    for controllers, path in _memberships(root):
        if controller in controllers.split(","):
            yield from _with_parents(root / _MOUNT / controller, path)


def _memberships(root: Path) -> Iterator[tuple[str, str]]:
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield controllers, path


def _with_parents(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group and the groups that contain it. In a container the path may be the host's, and only the mount itself exists."""
    inside = PurePosixPath(path.lstrip("/"))
    for group in dict.fromkeys((inside, *inside.parents)):
        if is_there(folder := mount / group):
            yield folder
