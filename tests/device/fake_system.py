"""Another machine's /proc and /sys, written to a folder."""

from collections.abc import Mapping
from pathlib import Path

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"
KIB = 1024


def write_system(root: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Path:
    """Write files, and links to other places below `root`; `proc` is there in any case, since a Linux always has it."""
    (root / "proc").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    for name, target in (links or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (root / target).mkdir(parents=True, exist_ok=True)
        path.symlink_to(root / target)
    return root


def supply(name: str, **files: object) -> dict[str, str]:
    """One folder of /sys/class/power_supply."""
    return {f"sys/class/power_supply/{name}/{file}": str(text) for file, text in files.items()}


def zone(number: int, celsius: float, *, kind: str = "x86_pkg_temp", mode: str = "enabled", **points: float) -> dict[str, str]:
    """One thermal zone, with its trip points by kind."""
    folder = f"sys/class/thermal/thermal_zone{number}"
    files = {f"{folder}/temp": str(round(celsius * 1000)), f"{folder}/type": kind, f"{folder}/mode": mode}
    for index, (point, limit) in enumerate(points.items()):
        files |= {f"{folder}/trip_point_{index}_type": point, f"{folder}/trip_point_{index}_temp": str(round(limit * 1000))}
    return files


def chip(number: int, name: str, **readings: object) -> dict[str, str]:
    """One chip of /sys/class/hwmon."""
    return {f"sys/class/hwmon/hwmon{number}/name": name} | {
        f"sys/class/hwmon/hwmon{number}/{file}": str(text) for file, text in readings.items()
    }
