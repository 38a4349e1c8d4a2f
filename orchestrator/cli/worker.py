"""The `nearfar worker` group: devices that lend their models to a hub. Each command loads what it needs when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from . import options

worker = typer.Typer(
    help="Lend this device's models to another machine, or let other devices lend theirs to this one.", no_args_is_help=True
)


@worker.callback()
def _group() -> None:
    """Keeps `worker` a group, whatever the number of its commands."""


@worker.command("pair")
def pair(
    name: Annotated[str, typer.Argument(help="What the hub calls the device, such as phone.")],
    address: Annotated[
        str, typer.Option(help="HOST:PORT at which the device reaches the hub; 0.0.0.0 is replaced by this machine's address.")
    ] = "0.0.0.0:7445",
    tokens: Annotated[Path, typer.Option(help="The hub's token file; created where there is none.")] = Path("workers.toml"),
    certificate: Annotated[Path, typer.Option(help="The hub's certificate (PEM); made where there is none.")] = Path("hub.pem"),
    key: Annotated[Path, typer.Option(help="The certificate's private key (PEM); made with it.")] = Path("hub-key.pem"),
    as_json: options.AsJson = False,
) -> None:
    """Make a token and, where there is none, a certificate, and show both as a QR code for a phone or another machine."""
    from .pair import HubFiles, pair_worker

    pair_worker(name, address, HubFiles(tokens=tokens, certificate=certificate, key=key), as_json=as_json)
