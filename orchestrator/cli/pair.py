"""`nearfar worker pair`: everything that a device needs to attach to this machine's hub, as a QR code."""

import socket
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from ...protocols import ConfigError
from ...protocols.address import Address, parse_address
from ...protocols.pairing import Pairing
from ..certificate import ensure_certificate
from ..compose import add_token
from .console import notes, output, print_json, reported, warn
from .qr import check_installed, qr_code

_EVERYWHERE = ("0.0.0.0", "::")
_SOMEWHERE_ELSE = ("192.0.2.1", 9)
"""An address reserved for documentation. Nothing is sent to it."""


@dataclass(frozen=True, kw_only=True)
class HubFiles:
    """What the hub is started with."""

    tokens: Path
    certificate: Path
    key: Path


def pair_worker(name: str, address: str, files: HubFiles, *, as_json: bool) -> None:
    """Make a token for `name`, a certificate if there is none, and show both as one pairing."""
    with reported(as_json=as_json):
        if not as_json:
            check_installed()  # before anything is written
        reachable = _reachable(parse_address(address))
        fingerprint = ensure_certificate(files.certificate, files.key, [reachable.host])
        pairing = Pairing(address=str(reachable), token=add_token(files.tokens, name), fingerprint=fingerprint, name=name)
        if as_json:
            print_json({"name": name, "address": pairing.address, "fingerprint": fingerprint, "uri": pairing.uri})
        else:
            _show(pairing, files)


def _show(pairing: Pairing, files: HubFiles) -> None:
    _draw(pairing.uri)
    notes.print(f"On [bold]{pairing.name}[/bold], scan this code, or copy the line below. Whoever has it can attach as {pairing.name}.")
    output.print(Text(pairing.uri), soft_wrap=True)
    notes.print("\nIn Termux, then paste the line when asked for it:")
    notes.print("  python -m nearfar.device.thin_worker --pairing-file -", highlight=False, soft_wrap=True)
    notes.print(f"[dim]The hub needs --tokens {files.tokens} --certificate {files.certificate} --key {files.key}[/dim]", soft_wrap=True)


def _draw(uri: str) -> None:
    code = qr_code(uri)
    width = code.plain.index("\n")
    if width > output.width:
        warn(f"the QR code needs a terminal of {width} columns, and this one has {output.width}")
    else:
        output.print(code)


def _reachable(address: Address) -> Address:
    """Where other devices reach a server at `address`: of "all addresses" the one in the local network."""
    if address.path:
        raise ConfigError("a device cannot reach a unix socket", hint="give the HOST:PORT that the hub listens at")
    return Address(host=_own_address(), port=address.port) if address.host in _EVERYWHERE else address


def _own_address() -> str:
    """The address that this machine would send from. Choosing it sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE_ELSE)
        except OSError as error:
            raise ConfigError("this machine has no address in a network", hint="give the address with --address HOST:PORT") from error
        return str(probe.getsockname()[0])
