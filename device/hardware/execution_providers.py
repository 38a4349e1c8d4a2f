"""Availability of onnxruntime's execution providers before a model is loaded."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ..compute import CPU, ProcessorKind
from ..onnx.providers import PROVIDERS
from .components import EngineProvider, Presence

_SHOWN_WHERE_ABSENT: Final = ("cuda", "coreml", "qnn", "openvino", "webgpu")
"""Providers that people ask for by name."""
_CPU: Final = "CPUExecutionProvider"


class ProviderDevice(NamedTuple):
    """One entry of onnxruntime's list of devices."""

    provider: str
    """Its name, as onnxruntime writes it."""
    kind: ProcessorKind
    device: str


def execution_providers(built_with: Sequence[str], devices: Sequence[ProviderDevice]) -> Iterator[EngineProvider]:
    """Yield the CPU's provider, then those that run language models: present if onnxruntime lists a device, unknown if only built in."""
    processor = next((entry.device for entry in devices if entry.provider == _CPU), "")
    yield EngineProvider(presence=Presence.PRESENT, reason="part of onnxruntime", name=CPU, kind=ProcessorKind.CPU, device=processor)
    for name, provider in PROVIDERS.items():
        found = [entry for entry in devices if entry.provider == provider.full]
        for entry in found:
            reason = "in onnxruntime's own list of devices"
            yield EngineProvider(presence=Presence.PRESENT, reason=reason, name=name, kind=entry.kind, device=entry.device)
        if not found and provider.full in built_with:
            reason = "built in; whether its driver works shows when a model is loaded"
            yield EngineProvider(presence=Presence.UNKNOWN, reason=reason, name=name, kind=provider.kind)
        elif not found and name in _SHOWN_WHERE_ABSENT:
            yield EngineProvider(presence=Presence.ABSENT, reason="not in this build", name=name, kind=provider.kind)
