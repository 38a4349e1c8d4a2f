"""`nearfar worker pair`: everything that a device needs to attach to this machine's hub, as a QR code."""

import socket
from pathlib import Path

from rich.text import Text

from ...protocols import ConfigError
from ...protocols.address import Address, parse_address
from ...protocols.pairing import Pairing
from ...protocols.token_keeping import add_token
from ...protocols.tokens import Scope
from ..compose.hub import HubConfig
from ..util.certificate import ensure_certificate
from .attach import chosen_hub
from .console import notes, output, print_json, reported, warn
from .options import Listening
from .qr import check_installed, qr_code

_ADDRESS = "0.0.0.0:7445"
_CERTIFICATE, _KEY = Path("hub.pem"), Path("hub-key.pem")
_SCOPES = (Scope.ATTACH, Scope.MEMORY)
"""Of a device. Whose memory it may see, if any, the hub's configuration says."""
_EVERYWHERE = ("0.0.0.0", "::")
_SOMEWHERE_ELSE = ("192.0.2.1", 9)
"""An address reserved for documentation. Nothing is sent to it."""


def pair_worker(name: str, config: Path | None, listening: Listening, *, as_json: bool) -> None:
    """Make a token for `name`, a certificate if there is none, and show both as one pairing."""
    with reported(as_json=as_json):
        if not as_json:
            check_installed()  # before anything is written
        hub = chosen_hub(config, listening, otherwise=HubConfig(address=_ADDRESS))
        reachable = _reachable(parse_address(hub.address))
        fingerprint = ensure_certificate(hub.certificate or _CERTIFICATE, hub.key or _KEY, [reachable.host])
        token = add_token(hub.tokens, name, scopes=_SCOPES).token
        pairing = Pairing(address=str(reachable), token=token, fingerprint=fingerprint, name=name)
        if as_json:
            print_json({"name": name, "address": pairing.address, "fingerprint": fingerprint, "uri": pairing.uri})
        else:
            _show(pairing, hub)


def _show(pairing: Pairing, hub: HubConfig) -> None:
    _draw(pairing.uri)
    notes.print(f"On {pairing.name}, scan this code, or copy the line below. Whoever has it can attach as {pairing.name}.")
    output.print(Text(pairing.uri), soft_wrap=True)
    notes.print("\nIn Termux, then paste the line when asked for it:")
    notes.print("  python -m nearfar.device.thin_worker --pairing-file -", soft_wrap=True)
    notes.print("On a computer:")
    notes.print("  nearfar worker attach --pairing-file -", soft_wrap=True)
    files = f"--tokens {hub.tokens} --certificate {hub.certificate or _CERTIFICATE} --key {hub.key or _KEY}"
    notes.print(f"Here: nearfar serve hub --address {hub.address} {files}", style="dim", soft_wrap=True)
    worker = hub.workers.get(pairing.name)
    if hub.memory and (worker is None or worker.user is None):
        warn(f'to synchronise its memory, too, say whose it is: [hub.workers.{pairing.name}] user = "..." in nearfar.toml')
    if parse_address(pairing.address).is_local:
        warn(f"only this machine can reach {pairing.address}; give another one with --address or in [hub]")


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
