"""GPUs and NPUs that the operating system lists, so that one which no engine uses is noticed."""

import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..compute import ProcessorKind
from .components import Accelerator, Presence
from .files import entries, is_linux, is_there, read_text

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
            yield _found(ProcessorKind.GPU, name, device, f"/{_PCI}/{device.name}")
    for card in entries(root / "sys/class/drm"):
        # The GPU on the chip of a phone or a board is not a PCI device.
        if re.fullmatch(r"card\d+", card.name) and not is_there(card / "device/vendor") and _driver(card / "device") not in _SHOWS_ONLY:
            name = f"{_driver(card / 'device') or 'unnamed'} GPU"
            yield _found(ProcessorKind.GPU, name, card / "device", f"/sys/class/drm/{card.name}")
    if is_there(root / _WSL):
        yield Accelerator(presence=Presence.PRESENT, reason=f"/{_WSL}", kind=ProcessorKind.GPU, name="GPU of Windows", driver="dxgkrnl")


def _pci_devices(root: Path, of_class: str) -> Iterator[Path]:
    return (device for device in entries(root / _PCI) if (read_text(device / "class") or "").startswith(of_class))


def _found(kind: ProcessorKind, name: str, device: Path, where: str) -> Accelerator:
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
        yield _found(ProcessorKind.NPU, name, device / "device", f"/sys/class/accel/{device.name}")
    for device in _pci_devices(root, _ACCELERATOR_CLASS):
        if _driver(device) is None:
            yield _found(ProcessorKind.NPU, "unnamed accelerator", device, f"/{_PCI}/{device.name}")
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
