"""Export the spans and metrics of a server, where OpenTelemetry's own environment variables name an endpoint."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ...protocols import ConfigError
from ..tracing.telemetry import instrument
from ..util.runtime import in_thread
from .printing import notes

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    from ..hybrid.hybrid import Hybrid

_OTLP: Final = "OTEL_EXPORTER_OTLP_"
_PROTOCOL: Final = "http/protobuf"


@asynccontextmanager
async def exporting(hybrid: "Hybrid") -> AsyncIterator[None]:
    """Export the spans and metrics of a server's tasks within the block, without texts, by OTLP over HTTP; what is left when it ends, too.

    Nothing is exported where no variable names an endpoint. Raises `ConfigError` for another protocol, and for missing packages.
    """
    places = {signal: endpoint for signal in ("TRACES", "METRICS") if (endpoint := _endpoint(signal))}
    if not places:
        yield
        return
    try:
        spans = _tracer_provider() if "TRACES" in places else None
        meters = _meter_provider() if "METRICS" in places else None
    except ImportError as error:
        hint = f"pip install 'nearfar[otel]', or unset {_OTLP}ENDPOINT"
        raise ConfigError("exporting spans needs OpenTelemetry's SDK and exporter", hint=hint) from error
    async with AsyncExitStack() as stack:
        if spans is not None:
            stack.push_async_callback(in_thread, spans.shutdown)
        if meters is not None:
            stack.push_async_callback(in_thread, meters.shutdown)
        instrument(hybrid, tracer_provider=spans, meter_provider=meters)
        for signal, endpoint in places.items():
            notes.print(f"{signal.lower()} are exported to {urlsplit(endpoint).hostname}", style="dim")
        yield


def _endpoint(signal: str) -> str:
    """Return where a signal is exported to; empty: nowhere. Raises `ConfigError` for a protocol that is not spoken here."""
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp") != "otlp"
    endpoint = "" if is_off else _variable(signal, "ENDPOINT")
    protocol = _variable(signal, "PROTOCOL") or _PROTOCOL
    if endpoint and protocol != _PROTOCOL:
        raise ConfigError(f"spans and metrics are not exported by {protocol}", hint=f"{_OTLP}PROTOCOL={_PROTOCOL}, usually at port 4318")
    return endpoint


def _variable(signal: str, name: str) -> str:
    return os.environ.get(f"{_OTLP}{signal}_{name}") or os.environ.get(f"{_OTLP}{name}", "")


def _tracer_provider() -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    _name_service()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _meter_provider() -> "MeterProvider":
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    _name_service()
    return MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], shutdown_on_exit=False)


def _name_service() -> None:
    """Let backends show this program by its name, unless the user has named it."""
    if "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", "nearfar")
