"""Main memory, as much of it as this process can have."""

from pathlib import Path

from .cgroup import memory_limits
from .components import Memory, Presence
from .files import is_linux, read_text

ROOT = Path("/")


def free_memory_bytes(root: Path = ROOT) -> int | None:
    """Return the bytes that can be taken without swapping, and within the limits of the control groups; None: unknown."""
    return read_memory(root).free_bytes


def read_memory(root: Path = ROOT) -> Memory:
    """Read total, free and limited memory."""
    return _linux_memory(root) if is_linux(root) else _other_memory()


def _linux_memory(root: Path) -> Memory:
    fields = _meminfo(root)
    total, available = fields.get("MemTotal"), fields.get("MemAvailable")
    if total is None or available is None:
        return Memory(presence=Presence.UNKNOWN, reason="/proc/meminfo cannot be read")
    limits = [(limit, free) for limit, free in memory_limits(root) if limit < total]
    return Memory(
        presence=Presence.PRESENT,
        reason="/proc/meminfo" + (" and the control group's limit" if limits else ""),
        total_bytes=total,
        free_bytes=min(available, *(free for _, free in limits)) if limits else available,
        limit_bytes=min((limit for limit, _ in limits), default=None),
    )


def _meminfo(root: Path) -> dict[str, int]:
    """Return bytes by name; the file counts in kibibytes."""
    lines = (line.split() for line in (read_text(root / "proc/meminfo") or "").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1 and words[1].isdecimal()}


def _other_memory() -> Memory:
    try:
        import psutil
    except ImportError:
        return Memory(presence=Presence.UNKNOWN, reason="psutil is not installed")
    memory = psutil.virtual_memory()
    return Memory(presence=Presence.PRESENT, reason="psutil", total_bytes=memory.total, free_bytes=memory.available)
