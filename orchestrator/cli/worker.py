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
        str, typer.Option(help="HOST:PORT at which the device reaches the hub (default: [hub], or this machine's address and port 7445).")
    ] = "",
    tokens: Annotated[Path | None, typer.Option(help="The hub's token file (default: [hub], or workers.toml).")] = None,
    certificate: Annotated[Path | None, typer.Option(help="The hub's certificate (default: [hub], or hub.pem); made if missing.")] = None,
    key: Annotated[Path | None, typer.Option(help="The certificate's private key (default: [hub], or hub-key.pem).")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a token and, where there is none, a certificate, and show both as a QR code for a phone or another machine."""
    from .pair import pair_worker

    pair_worker(name, config, options.Listening(address, certificate, key, tokens, insecure=False), as_json=as_json)


@worker.command("attach")
def attach(
    address: Annotated[str, typer.Argument(help="HOST or HOST:PORT of the hub, or unix:/path; with --pairing-file it stands there.")] = "",
    token: Annotated[
        str, typer.Option(envvar="NEARFAR_TOKEN", help="This device's token; better in $NEARFAR_TOKEN, which other users do not see.")
    ] = "",
    certificate: Annotated[Path | None, typer.Option(help="PEM file of the hub's certificate, or of who signed it.")] = None,
    client_certificate: options.ClientCertificate = None,
    client_key: options.ClientKey = None,
    pairing_file: Annotated[str, typer.Option(help="File with the line that `pair` shows, or - to paste it.")] = "",
    near: options.Near = None,
    config: options.Config = None,
    drain: options.Drain = 30.0,
    as_json: options.AsJson = False,
) -> None:
    """Lend this device's model to a hub: dial out, take steps, come back when the connection breaks; until Ctrl-C or SIGTERM."""
    from .attach import Lending, attach_worker

    lending = Lending(
        address=address,
        token=token,
        certificate=certificate,
        pairing_file=pairing_file,
        drain=drain,
        client_certificate=client_certificate,
        client_key=client_key,
    )
    attach_worker(lending, config, near, as_json=as_json)


@worker.command("list")
def list_workers(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """List the devices that this machine's hub knows: attached or not, what they lend, battery, heat and free memory."""
    from .worker_list import show_workers

    show_workers(config, as_json=as_json)
