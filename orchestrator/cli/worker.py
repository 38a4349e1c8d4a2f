"""`nearfar worker`: lend this device's models to a hub, or pair other devices with the hub on this machine."""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer
from rich.text import Text

from ...protocols import Agent, ConfigError
from ...protocols.address import Address, Pairing, parse_address, read_pairing
from ...protocols.attach import Worker
from ...protocols.channel import client_tls
from ..compose.agents import open_near, read_device_state
from ..compose.hub import HubConfig, pair_device, serve_command
from ..compose.hub import list_workers as ask_hub
from . import options
from .printing import Line, Note, notes, output, show, warn
from .running import execute, report_errors
from .serve import chosen_hub, chosen_near, until_stopped
from .worker_conformance import conform

_PORT: Final = 7445
_ADDRESS: Final = f"0.0.0.0:{_PORT}"
_QUIET_ZONE: Final = 4
"""Modules of white around a QR code, as ISO/IEC 18004 requires."""
_BLOCKS: Final = {(0, 0): " ", (1, 0): "\N{UPPER HALF BLOCK}", (0, 1): "\N{LOWER HALF BLOCK}", (1, 1): "\N{FULL BLOCK}"}

app = typer.Typer(no_args_is_help=True)
app.command("conform")(conform)


@app.command("pair")
def pair(
    name: Annotated[str, typer.Argument(help="Name of the device for the hub, such as phone.")],
    address: Annotated[
        str, typer.Option(help="HOST:PORT at which the device reaches the hub. Default: [hub], or this machine's address and port 7445.")
    ] = "",
    tokens: Annotated[Path | None, typer.Option(help="The hub's token file. Default: [hub], or workers.toml.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="The hub's certificate. Default: [hub], or hub.pem. Made if missing.")] = None,
    key: Annotated[Path | None, typer.Option(help="The certificate's private key. Default: [hub], or hub-key.pem.")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a token and, if there is none, a certificate, and show both as a QR code for a phone or another machine."""
    with report_errors(as_json=as_json):
        if not as_json:
            _check_qr_installed()  # before anything is written
        listening = options.Listening(address, certificate, key, tokens, insecure=False)
        hub = chosen_hub(config, listening, default=partial(HubConfig, address=_ADDRESS))
        pairing = pair_device(hub, name)
        data = {"name": name, "address": pairing.address, "fingerprint": pairing.fingerprint, "uri": pairing.uri}
        show(data, _pairing_lines(pairing, hub), as_json=as_json)
        if not as_json:
            _warn_about(pairing, hub)


@app.command("attach")
def attach(
    address: Annotated[str, typer.Argument(help="HOST or HOST:PORT of the hub, or unix:/path. Omit it with --pairing-file.")] = "",
    token: Annotated[
        str, typer.Option(envvar="NEARFAR_TOKEN", help="This device's token. Prefer $NEARFAR_TOKEN, which other users cannot see.")
    ] = "",
    certificate: options.ServerCertificate = None,
    client_certificate: options.ClientCertificate = None,
    client_key: options.ClientKey = None,
    pairing_file: Annotated[str, typer.Option(help="File with the line that `pair` shows, or - to paste it.")] = "",
    near: options.Near = None,
    config: options.Config = None,
    drain: options.Drain = 30.0,
    as_json: options.AsJson = False,
) -> None:
    """Lend this device's model to a hub until Ctrl-C or SIGTERM. The device dials out, and again when the connection breaks."""

    async def work() -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        # The options are checked before a model is loaded.
        worker_for = _worker_for(address, token, certificate, pairing_file, client_certificate, client_key)
        agent = await open_near(chosen_near(config, near), name="near")
        try:
            await _work(worker_for(agent), drain=drain, as_json=as_json)
        finally:
            with anyio.CancelScope(shield=True):
                await agent.aclose()

    execute(work(), as_json=as_json)


@app.command("list")
def list_workers(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """List the devices that this machine's hub knows: attached or not, their models, battery, heat and free memory."""

    async def work() -> None:
        hub = options.read_section(config, "hub", HubConfig)
        workers = await ask_hub(hub.socket)
        data = {"workers": [worker.model_dump(mode="json") for worker in workers]}
        show(data, (f"{worker.name:<20} {worker.text}" for worker in workers), as_json=as_json)

    execute(work(), as_json=as_json)


def _worker_for(
    address: str, token: str, certificate: Path | None, pairing_file: str, client_certificate: Path | None, client_key: Path | None
) -> Callable[[Agent], Worker]:
    """Return a function that makes the worker for the hub that the options or the pairing name. Raises `ConfigError`."""
    make = partial(Worker, device_state=read_device_state)
    tls = client_tls(certificate, client_certificate, client_key)
    if pairing_file:
        if address or certificate is not None:
            raise ConfigError("the pairing has an address and a certificate already", hint="leave out HOST and --certificate")
        pairing = read_pairing(pairing_file)
        return partial(make, address=pairing.address, token=pairing.token, tls=tls, fingerprint=pairing.fingerprint)
    if not address or not (token or client_certificate):
        raise ConfigError("the hub's address or this device's token is missing", hint="give HOST and NEARFAR_TOKEN, or --pairing-file")
    full = address if ":" in address else str(Address(host=address, port=_PORT))
    return partial(make, address=full, token=token or None, tls=tls)


async def _work(worker: Worker, *, drain: float, as_json: bool) -> None:
    """Serve steps until Ctrl-C or SIGTERM, then drain. Raises the error if the hub refuses the worker."""
    refused: list[Exception] = []

    async def serve() -> None:
        try:
            await worker.run()
        except Exception as error:  # kept and raised below: from here it would leave the task group as an exception group
            refused.append(error)
        tasks.cancel_scope.cancel()

    async def announce() -> None:
        await worker.attached.wait()
        told = f"attached to {worker.address} as {worker.name}"
        show({"worker": worker.name, "hub": worker.address}, [Note(told, ""), Note("stop with Ctrl-C")], as_json=as_json)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        tasks.start_soon(announce)
        await until_stopped()
        notes.print(f"leaving; running steps have {drain:g} s", style="dim")
        await worker.drain(drain)
    if refused:
        raise refused[0]


def _pairing_lines(pairing: Pairing, hub: HubConfig) -> Iterator[Line]:
    code = qr_code(pairing.uri)
    width = code.plain.index("\n")
    if width <= output.width:
        yield code
    else:
        warn(f"the QR code needs a terminal of {width} columns, and this one has {output.width}")
    yield Note(f"On {pairing.name}, scan this code, or copy the line below.", "")
    yield Note(f"Keep both secret: with them, any device can attach as {pairing.name}.", "")
    yield Text(pairing.uri)
    yield Note("\nIn Termux, then paste the line when asked for it:", "")
    yield Note("  python -m nearfar.device.thin_worker --pairing-file -", "")
    yield Note("On a computer:", "")
    yield Note("  nearfar worker attach --pairing-file -", "")
    yield Note(f"Here: {serve_command(hub)}")


def _warn_about(pairing: Pairing, hub: HubConfig) -> None:
    worker = hub.workers.get(pairing.name)
    if hub.memory and (worker is None or worker.user is None):
        warn(f'to synchronise its memory, too, name its user: [hub.workers.{pairing.name}] user = "..." in nearfar.toml')
    if parse_address(pairing.address).is_local:
        warn(f"only this machine can reach {pairing.address}; give another address with --address or in [hub]")


def _check_qr_installed() -> None:
    """Raise `ConfigError` if the package that makes QR codes is missing."""
    if find_spec("segno") is None:
        raise ConfigError("drawing a QR code needs the Python package segno", hint="pip install 'nearfar[hub]'")


def qr_code(text: str) -> Text:
    """Return `text` as a QR code: two modules in a character, black on white in every terminal."""
    import segno

    rows = [list(row) for row in segno.make(text, error="l", micro=False).matrix_iter(border=_QUIET_ZONE)]
    if len(rows) % 2:
        rows.append([0] * len(rows[0]))
    lines = ("".join(_block(pair) for pair in zip(upper, lower, strict=True)) for upper, lower in zip(rows[::2], rows[1::2], strict=True))
    return Text("\n".join(lines), style="#000000 on #ffffff", no_wrap=True)


def _block(pair: Sequence[int]) -> str:
    upper, lower = pair
    return _BLOCKS[int(upper), int(lower)]
