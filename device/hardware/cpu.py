"""The processor: its model, its instruction sets, and how many of its cores this process may use."""

import os
import platform
import subprocess
import sys
from math import floor
from pathlib import Path
from typing import Final

from .cgroup import cpu_quota
from .components import Cpu, Presence
from .files import is_linux, read_text

ROOT = Path("/")
_FEATURES: Final = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "neon", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme", "rvv", "vsx"),
)
"""Instruction sets that llama.cpp and onnxruntime have kernels for."""
_ALIASES: Final = {"asimd": "neon", "fphp": "asimdhp"}
_SYSCTL_FEATURES: Final = {
    "hw.optional.AdvSIMD": "neon",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_SME": "sme",
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512f": "avx512f",
}
_SYSCTL_SECONDS: Final = 2.0


def usable_cores(root: Path = ROOT) -> int:
    """Return the logical cores that affinity and the control group leave to this process, at least 1."""
    return _usable(cpu_quota(root))


def _usable(quota: float | None) -> int:
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # Only Linux has it.
        allowed = os.cpu_count() or 1
    return allowed if quota is None else max(min(allowed, floor(quota)), 1)


def read_cpu(root: Path = ROOT) -> Cpu:
    """Read the processor's model, cores and instruction sets."""
    return _linux_cpu(root) if is_linux(root) else cpu_of_sysctl(_sysctl())


def _linux_cpu(root: Path) -> Cpu:
    cores = [_fields(part) for part in (read_text(root / "proc/cpuinfo") or "").split("\n\n") if part]
    quota = cpu_quota(root)
    architecture, usable = platform.machine(), _usable(quota)
    if not cores:
        reason = "/proc/cpuinfo cannot be read"
        return Cpu(presence=Presence.UNKNOWN, reason=reason, architecture=architecture, usable_cores=usable, quota=quota)
    first = cores[0]
    # x86 says "flags", ARM "Features"; the kernel of a phone or a board names its processor at the end of the file.
    names = {_ALIASES.get(name, name) for name in (first.get("flags") or first.get("Features") or "").split()}
    return Cpu(
        presence=Presence.PRESENT,
        reason="/proc/cpuinfo",
        model=first.get("model name") or cores[-1].get("Hardware") or _board(root),
        architecture=architecture,
        physical_cores=len({(core["physical id"], core["core id"]) for core in cores if {"physical id", "core id"} <= core.keys()}) or None,
        logical_cores=sum("processor" in core for core in cores) or None,
        usable_cores=usable,
        quota=quota,
        features=tuple(name for name in _FEATURES if name in names),
    )


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _board(root: Path) -> str | None:
    text = read_text(root / "proc/device-tree/model")
    return None if text is None else text.strip("\0")


def _sysctl() -> str:
    if sys.platform != "darwin":
        return ""
    try:
        command = ["/usr/sbin/sysctl", "machdep.cpu.brand_string", "hw.physicalcpu", "hw.logicalcpu", "hw.optional"]
        return subprocess.run(command, capture_output=True, text=True, timeout=_SYSCTL_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def cpu_of_sysctl(text: str) -> Cpu:
    """Parse macOS's `sysctl` output, lines of `name: value`; on other systems, take what Python knows."""
    fields = _fields(text)
    physical, logical = fields.get("hw.physicalcpu", ""), fields.get("hw.logicalcpu", "")
    return Cpu(
        presence=Presence.PRESENT,
        reason="sysctl" if fields else "Python's platform module",
        model=fields.get("machdep.cpu.brand_string") or platform.processor() or None,
        architecture=platform.machine(),
        physical_cores=int(physical) if physical.isdecimal() else None,
        logical_cores=int(logical) if logical.isdecimal() else os.cpu_count(),
        usable_cores=_usable(None),
        features=tuple(name for key, name in _SYSCTL_FEATURES.items() if fields.get(key) == "1"),
    )
