"""`nearfar doctor` on the certificates that a configuration names: whether they can be used, and for how long."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from ...protocols import ConfigError
from ...protocols.certificates import first_certificate, read_pair, read_roots, validity_of
from ...protocols.channel import expiry
from ..compose.agents import GatewayConfig
from ..compose.config import Config
from ..task.sections.memory import PeerConfig
from .finding import Finding, Status

_REPLACE = "put another one in its place; a server that runs takes it without a restart"


def certificate_findings(config: Config) -> Iterator[Finding]:
    """One for each certificate."""
    for name, (certificate, key) in _own(config).items():
        yield _finding(name, certificate, key)
    for name, roots in _trusted(config).items():
        yield _finding(name, roots, None)


def _finding(name: str, certificate: Path, key: Path | None) -> Finding:
    """Of a certificate with its key, or of those that are trusted."""
    if key is not None and not certificate.exists() and not key.exists():
        missing = f"neither {certificate} nor {key} is there"
        return Finding(area="tls", name=name, status="absent", detail=missing, advice="`nearfar worker pair` makes those of a hub")
    try:
        pem = read_roots(certificate) if key is None else read_pair(certificate, key)[1]
        validity = validity_of(first_certificate(pem))
    except ConfigError as error:
        return Finding(area="tls", name=name, status="broken", detail=error.message, advice=error.hint)
    now = datetime.now(UTC)
    status: Status = "broken" if validity.ends <= now else "expiring" if validity.is_ending(now) else "ok"
    advice = "" if status == "ok" else _REPLACE
    return Finding(area="tls", name=name, status=status, detail=f"{certificate} {expiry(validity.ends, now)}", advice=advice)


def _own(config: Config) -> Mapping[str, tuple[Path, Path]]:
    """What this machine shows to others."""
    found = {name: (section.client_certificate, section.client_key) for name, section in _clients(config).items()}
    if config.hub is not None:
        found["hub"] = (config.hub.certificate, config.hub.key)
    return {f"[{name}]": (certificate, key) for name, (certificate, key) in found.items() if certificate is not None and key is not None}


def _trusted(config: Config) -> Mapping[str, Path]:
    """Whom this machine trusts."""
    found = {f"[{name}] certificate": section.certificate for name, section in _clients(config).items()}
    if config.hub is not None:
        found["[hub] client_authority"] = config.hub.client_authority
    return {name: path for name, path in found.items() if path is not None}


def _clients(config: Config) -> Mapping[str, GatewayConfig | PeerConfig]:
    """The sections that say where a server is."""
    agents = {"far": config.far, **{f"other_far.{name}": far for name, far in config.other_far.items()}}
    gateways = {name: far for name, far in agents.items() if isinstance(far, GatewayConfig)}
    peers = {} if config.memory is None else {f"memory.peers.{name}": peer for name, peer in config.memory.peers.items()}
    return {**gateways, **peers}
