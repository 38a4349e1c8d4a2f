"""The processors of this machine as the system lists them: the CPU with what this process may use of it, GPUs and NPUs. And the choice of
the one that a model computes on: the fastest, the one that draws least power, or one by name.

GPUs and NPUs are listed so that the probe notices one that no engine uses. A *provider* is one way in which an engine computes: a backend
of llama.cpp, an execution provider of onnxruntime. Each engine lists the providers that it has on this machine (`llama/devices.py`,
`onnx/model.py`); `choose_provider` picks one of that list.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from math import floor
from pathlib import Path
from typing import Final

from pydantic import Field

from ...protocols import ConfigError
from ...protocols.steps import Value
from . import cpu_quota, entries, is_linux, is_there, read_text

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


class Presence(StrEnum):
    """Presence of a part in the machine."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"
    """The probe could not tell; not the same as absent."""


class Component(Value):
    """A part of the machine, or something that reads one."""

    presence: Presence
    reason: str = Field(min_length=1)
    """The source that says so, or the reason why none does."""


class ProcessorKind(StrEnum):
    """The kind of processor that a provider runs on."""

    CPU = "cpu"
    GPU = "gpu"
    """With memory of its own."""
    INTEGRATED_GPU = "integrated_gpu"
    """Shares the memory, and the power budget, of the CPU."""
    NPU = "npu"


class Cpu(Component):
    """The processor, and how much of it this process may use."""

    model: str | None = None
    architecture: str
    physical_cores: int | None = None
    logical_cores: int | None = None
    usable_cores: int
    """Logical cores that affinity and the control group leave to this process, at least 1."""
    quota: float | None = None
    """Cores' worth of time that the control group grants; None: all."""
    features: tuple[str, ...] = ()
    """Instruction sets that matter to inference, by the kernel's names: `avx2`, `avx512f`, `amx_int8`, `neon` ..."""


class Accelerator(Component):
    """A GPU or an NPU that the operating system lists, whether or not an engine can use it."""

    kind: ProcessorKind
    name: str
    driver: str | None = None


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


_VENDORS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x106b": "Apple", "0x5143": "Qualcomm", "0x13b5": "Arm"}
"""By PCI vendor. Cards of others, such as those of virtual machines and of server boards, show pictures and compute nothing."""
_PCI: Final = "sys/bus/pci/devices"
_DISPLAY_CLASS: Final = "0x03"
_ACCELERATOR_CLASS: Final = "0x12"
_HEXAGON: Final = "dev/fastrpc-cdsp"
_WSL: Final = "dev/dxg"
"""Through which Linux on Windows reaches the host's GPUs; it lists none of them."""
_SHOWS_ONLY: Final = frozenset({"simpledrm", "simple-framebuffer", "virtio_gpu", "vkms"})
"""Drivers of graphics that are no PCI devices and compute nothing."""
_NPU_DRIVERS: Final = {
    "intel_vpu": "Intel NPU",
    "amdxdna": "AMD XDNA NPU",
    "rocket": "Rockchip NPU",
    "RKNPU": "Rockchip NPU",
    "qaic": "Qualcomm Cloud AI",
    "habanalabs": "Intel Gaudi",
    "ethosu": "Arm Ethos-U",
}


def read_accelerators(root: Path = Path("/")) -> tuple[tuple[Accelerator, ...], tuple[Accelerator, ...]]:
    """Return the GPUs and the NPUs. A kind that the machine lacks has one entry that says so."""
    if is_linux(root):
        return _or_absent(_linux_gpus(root), ProcessorKind.GPU, root), _or_absent(_linux_npus(root), ProcessorKind.NPU, root)
    return _other_accelerators()


def _or_absent(found: Iterator[Accelerator], kind: ProcessorKind, root: Path) -> tuple[Accelerator, ...]:
    if known := tuple(found):
        return known
    if is_there(root / _PCI) or is_there(root / "sys/class/drm"):
        return (Accelerator(presence=Presence.ABSENT, reason="/sys lists none", kind=kind, name=""),)
    return (Accelerator(presence=Presence.UNKNOWN, reason="/sys lists neither PCI devices nor graphics", kind=kind, name=""),)


def _linux_gpus(root: Path) -> Iterator[Accelerator]:
    names = list(_nvidia_names(root))
    for device in _pci_devices(root, _DISPLAY_CLASS):
        vendor = _VENDORS.get(read_text(device / "vendor") or "")
        if vendor is not None:
            name = names.pop(0) if vendor == "NVIDIA" and names else f"{vendor} GPU"
            yield _accelerator(ProcessorKind.GPU, name, device, f"/{_PCI}/{device.name}")
    for card in entries(root / "sys/class/drm"):
        # The GPU on the chip of a phone or a board is not a PCI device.
        if re.fullmatch(r"card\d+", card.name) and not is_there(card / "device/vendor") and _driver(card / "device") not in _SHOWS_ONLY:
            name = f"{_driver(card / 'device') or 'unnamed'} GPU"
            yield _accelerator(ProcessorKind.GPU, name, card / "device", f"/sys/class/drm/{card.name}")
    if is_there(root / _WSL):
        yield Accelerator(presence=Presence.PRESENT, reason=f"/{_WSL}", kind=ProcessorKind.GPU, name="GPU of Windows", driver="dxgkrnl")


def _pci_devices(root: Path, of_class: str) -> Iterator[Path]:
    return (device for device in entries(root / _PCI) if (read_text(device / "class") or "").startswith(of_class))


def _accelerator(kind: ProcessorKind, name: str, device: Path, where: str) -> Accelerator:
    driver = _driver(device)
    reason = where if driver is not None else f"{where}, without a driver"
    return Accelerator(presence=Presence.PRESENT, reason=reason, kind=kind, name=name, driver=driver)


def _nvidia_names(root: Path) -> Iterator[str]:
    """Yield the GPUs' names in the order of the PCI bus, as NVIDIA's driver lists them."""
    for card in entries(root / "proc/driver/nvidia/gpus"):
        model = re.search(r"^Model:\s*(.+)$", read_text(card / "information") or "", re.MULTILINE)
        if model is not None:
            yield model[1].strip()


def _linux_npus(root: Path) -> Iterator[Accelerator]:
    for device in entries(root / "sys/class/accel"):
        driver = _driver(device / "device")
        name = _NPU_DRIVERS.get(driver or "", f"{driver or 'unnamed'} accelerator")
        yield _accelerator(ProcessorKind.NPU, name, device / "device", f"/sys/class/accel/{device.name}")
    for device in _pci_devices(root, _ACCELERATOR_CLASS):
        if _driver(device) is None:
            yield _accelerator(ProcessorKind.NPU, "unnamed accelerator", device, f"/{_PCI}/{device.name}")
    if is_there(root / _HEXAGON):
        reason = f"/{_HEXAGON}"
        yield Accelerator(presence=Presence.PRESENT, reason=reason, kind=ProcessorKind.NPU, name="Qualcomm Hexagon NPU", driver="fastrpc")


def _driver(device: Path) -> str | None:
    link = device / "driver"
    return link.resolve().name if is_there(link) else None


def _other_accelerators() -> tuple[tuple[Accelerator, ...], tuple[Accelerator, ...]]:
    if sys.platform == "darwin" and platform.machine() == "arm64":
        reason = "every Apple silicon has one"
        gpu = Accelerator(presence=Presence.PRESENT, reason=reason, kind=ProcessorKind.INTEGRATED_GPU, name="Apple GPU")
        npu = Accelerator(presence=Presence.PRESENT, reason=reason, kind=ProcessorKind.NPU, name="Apple Neural Engine")
        return (gpu,), (npu,)
    reason = f"nearfar cannot list accelerators on {sys.platform}"
    kinds = (ProcessorKind.GPU, ProcessorKind.NPU)
    gpu, npu = (Accelerator(presence=Presence.UNKNOWN, reason=reason, kind=kind, name="") for kind in kinds)
    return (gpu,), (npu,)


_SMALL_MODEL: Final = 20_000_000
"""Parameters below which one token is less work than waking a second thread."""


@dataclass(frozen=True, slots=True)
class Threads:
    """CPU threads of a pass. Reading the weights for one token is bound by memory, computing several by the cores."""

    single: int
    batch: int
    """At most so many for several tokens, and no fewer than `single`, whichever is faster."""


def threads_for(parameters: int) -> Threads:
    """Return the threads for a model of so many weights."""
    if parameters < _SMALL_MODEL:
        return Threads(1, 1)
    import psutil

    usable = usable_cores()
    return Threads(max(usable // 2, 1), max(min(psutil.cpu_count(logical=False) or 1, usable), 1))


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Let the process take at most `more` bytes of address space beyond what it has until the block ends.

    A damaged file can ask for any amount, and Linux would grant it until it ends some other process. Beyond the limit, Python raises
    `MemoryError`, and a library does what it does where there is no memory. Some systems, such as macOS, keep no such limit.
    """
    import resource

    import psutil

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    _set_limit(psutil.Process().memory_info().vms + more, hard)
    try:
        yield
    finally:
        _set_limit(soft, hard)


def _set_limit(soft: int, hard: int) -> None:
    import resource

    with suppress(ValueError, OSError):  # Some systems have no such limit, and a limit cannot be raised beyond one that is set already.
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


FASTEST: Final = "fastest"
LOWEST_POWER: Final = "lowest_power"
CPU: Final = "cpu"


class Provider(Value):
    """One way to compute that an engine has on this machine."""

    name: str
    """In lower case, as in `Execution.provider`: `cpu`, `cuda`, `metal` ..."""
    kind: ProcessorKind
    device: str = ""
    """The processor's own name, where the engine tells it."""


class ProviderChoice(Value):
    """A provider, and why it."""

    provider: Provider
    reason: str


_PREFERRED: Final = (
    "tensorrt",
    "cuda",
    "rocm",
    "migraphx",
    "metal",
    "coreml",
    "directml",
    "vulkan",
    "sycl",
    "opencl",
    "webgpu",
    "openvino",
    "qnn",
    "vitisai",
    "hexagon",
    "nnapi",
)
"""Providers from fast to slow, for machines without measurements. A vendor's own library goes before a portable one, and a GPU before an
NPU: decoding is bound by memory, and NPUs read the CPU's. Providers that are not named here follow; the CPU is last."""
_TINY_MODEL: Final = 20_000_000
"""Weights below which a pass takes less time on the CPU than a GPU needs to start its kernels."""
_FRUGAL: Final = (ProcessorKind.NPU, ProcessorKind.INTEGRATED_GPU, ProcessorKind.CPU, ProcessorKind.GPU)
"""From little power to much. A card of its own idles at what a laptop's CPU draws under load."""


def choose_provider(
    present: Sequence[Provider],
    wanted: str,
    *,
    allow_fallback: bool = False,
    tokens_per_second: Mapping[str, float] | None = None,
    parameters: int | None = None,
) -> ProviderChoice:
    """Choose the provider that `wanted` asks for: `fastest`, `lowest_power` or a provider's name.

    `allow_fallback`: if a named provider is absent, take the fastest of the others instead of failing.
    `tokens_per_second`: measured speeds of this model, by provider. `fastest` uses them if at least two of the providers present have
    one.
    `parameters`: weights of the model, whose size decides if nothing was measured.

    Raises `ConfigError` for a provider that is absent.
    """
    if wanted == FASTEST:
        return _fastest(present, tokens_per_second or {}, parameters)
    if wanted == LOWEST_POWER:
        provider = min(present, key=lambda each: (_FRUGAL.index(each.kind), _rank(each)))
        return ProviderChoice(provider=provider, reason=f"of {_names(present)}, a {_word(provider.kind)} draws least power")
    named = next((provider for provider in present if provider.name == wanted), None)
    if named is not None:
        return ProviderChoice(provider=named, reason="asked for by name")
    if not allow_fallback:
        hint = f"use one of those present, {_names(present)}, or set allow_fallback = true; `nearfar doctor` says why {wanted} is missing"
        raise ConfigError(f"{wanted!r} is not available on this machine", hint=hint)
    fallback = _fastest(present, tokens_per_second or {}, parameters)
    return ProviderChoice(provider=fallback.provider, reason=f"{wanted} is absent and fallback is allowed; {fallback.reason}")


def _fastest(present: Sequence[Provider], tokens_per_second: Mapping[str, float], parameters: int | None) -> ProviderChoice:
    measured = [provider for provider in present if provider.name in tokens_per_second]
    if len(measured) > 1:
        provider = max(measured, key=lambda each: tokens_per_second[each.name])
        return ProviderChoice(
            provider=provider, reason=f"measured: {tokens_per_second[provider.name]:.1f} tokens/s, the most of {_names(measured)}"
        )
    cpu = next((provider for provider in present if provider.kind is ProcessorKind.CPU), None)
    if cpu is not None and parameters is not None and parameters < _TINY_MODEL:
        return ProviderChoice(provider=cpu, reason=f"with {parameters / 1e6:.1f} million weights, too small a model to gain from another")
    provider = min(present, key=_rank)
    reason = "the only one" if len(present) == 1 else f"of {_names(present)}, expected to be the fastest"
    return ProviderChoice(provider=provider, reason=reason)


def _rank(provider: Provider) -> int:
    if provider.kind is ProcessorKind.CPU:
        return len(_PREFERRED) + 1
    return _PREFERRED.index(provider.name) if provider.name in _PREFERRED else len(_PREFERRED)


def _names(providers: Sequence[Provider]) -> str:
    return ", ".join(dict.fromkeys(provider.name for provider in providers))


def _word(kind: ProcessorKind) -> str:
    return {ProcessorKind.CPU: "CPU", ProcessorKind.NPU: "NPU"}.get(kind, "GPU")
