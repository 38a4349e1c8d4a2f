"""Lend this device's models to the hub of another machine, test the workers of a hub, and list the devices that lend theirs."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from unittest import SkipTest
from urllib.parse import quote, urlsplit

import anyio
import typer
from rich.text import Text

from ...protocols import Agent, ConfigError, NearfarError, Side, ToolSpec
from ...protocols.address import Address, Pairing, parse_address, read_pairing
from ...protocols.attach import Worker
from ...protocols.hub import Hub
from ...protocols.security import Scope
from ...protocols.tls import client_tls, ensure_certificate
from ...protocols.token_file import add_token, read_tokens
from ..compose import open_near, read_device_state
from ..compose.hub import (
    CERTIFICATE,
    KEY,
    AttachedConfig,
    HubConfig,
    PageModel,
    ServeConfig,
    engine_files,
    open_attached,
    pair_device,
    reachable,
    read_page_model,
    serve_command,
)
from ..compose.hub import list_workers as ask_hub
from . import options
from .models import show_progress
from .running import EXIT_FAILED, Line, Note, asynchronous, notes, output, report_errors, show, warn
from .serve import chosen_hub, chosen_near, until_stopped

if TYPE_CHECKING:
    from ...protocols.testing.agent_conformance import Check, Subject

_PORT: Final = 7445
_ADDRESS: Final = f"0.0.0.0:{_PORT}"
_QUIET_ZONE: Final = 4
"""Modules of white around a QR code, as ISO/IEC 18004 requires."""
_BLOCKS: Final = {(0, 0): " ", (1, 0): "\N{UPPER HALF BLOCK}", (0, 1): "\N{LOWER HALF BLOCK}", (1, 1): "\N{FULL BLOCK}"}


_POLL_SECONDS: Final = 0.05
_STYLES: Final = {"passed": "green", "does not apply": "dim", "failed": "red"}
_TOOL: Final = ToolSpec(
    name="open",
    description="Open a section of a passage about a city, such as its mayor.",
    parameters={
        "type": "object",
        "properties": {"title": {"type": "string"}, "section": {"type": "string"}},
        "required": ["title", "section"],
    },
)
_SCHEMA: Final = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The outcome of one check of the suite."""

    check: str
    outcome: Literal["passed", "does not apply", "failed"]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The prompts that make a worker's model do each thing."""

    short: str
    long: str
    tool: str


@asynchronous
async def conform(
    worker: Annotated[str, typer.Argument(help="Name of a worker that is attached, as `worker list` shows it.")],
    prompt: Annotated[str, typer.Option(help="A prompt with a short answer.")] = "What is the mayor of Port Alder?",
    long_prompt: Annotated[str, typer.Option(help="A prompt with an answer of a hundred tokens or more.")] = "Count from 1 to 500.",
    tool_prompt: Annotated[
        str, typer.Option(help="A prompt that makes the model call the tool open(title, section).")
    ] = "What is the mayor of Port Alder?",
    seconds: Annotated[float, typer.Option(min=1, help="Seconds after which a check counts as hanging.")] = 120.0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that an attached worker keeps the contract of agents, whatever language it is written in."""
    hub = options.read_section(config, "hub", HubConfig)
    prompts = Prompts(short=prompt, long=long_prompt, tool=tool_prompt)
    outcomes = await run_suite(hub, worker, prompts, seconds=seconds)
    failed = sum(found.outcome == "failed" for found in outcomes)
    data = {"worker": worker, "failed": failed, "checks": [asdict(found) for found in outcomes]}
    show(data, [*map(_line, outcomes)], as_json=as_json)
    if failed:
        raise typer.Exit(EXIT_FAILED)


async def run_suite(hub: HubConfig, worker: str, prompts: Prompts, *, seconds: float) -> list[CheckOutcome]:
    """Run every check against a worker, and return what became of each. Raises `Unavailable` if it is not attached, or there is no hub."""
    from ...protocols.testing.agent_conformance import CHECKS, SchemaUse, Subject, ToolUse

    async def create() -> Agent:
        return await open_attached(AttachedConfig(socket=hub.socket, worker=worker, side=Side.FAR))

    agent = await create()
    claims = agent.card.capabilities
    await agent.aclose()
    async with _live_steps(hub.socket, worker) as live:
        subject = Subject(
            create=create,
            prompt=prompts.short,
            long_prompt=prompts.long,
            tool_use=ToolUse(prompt=prompts.tool, tools=(_TOOL,), result="Vera Falk") if claims.tools else None,
            schema_use=SchemaUse(prompt=prompts.short, schema=_SCHEMA) if claims.json_schema else None,
            live_steps=lambda _: live[0],
            time_limit=seconds,
        )
        return [await _outcome(check, subject) for check in CHECKS]


async def _outcome(check: "Check", subject: "Subject") -> CheckOutcome:
    from ...protocols.testing.agent_conformance import run_check

    name = check.__name__
    try:
        await run_check(check, subject)
    except SkipTest as skipped:
        return CheckOutcome(name, "does not apply", str(skipped))
    except TimeoutError:
        return CheckOutcome(name, "failed", f"it did not end within {subject.time_limit:g} s")
    except (AssertionError, NearfarError) as error:
        return CheckOutcome(name, "failed", str(error))
    return CheckOutcome(name, "passed")


@asynccontextmanager
async def _live_steps(socket: Path, worker: str) -> AsyncIterator[list[int]]:
    """Yield a list whose only element is kept at the number of steps that the worker has not ended, as the hub knows it.

    Raises `Unavailable` when the hub ends meanwhile: the checks that are left would blame the worker.
    """
    live = [0]

    async def watch() -> None:
        while True:
            live[0] = sum(known.live_steps for known in await ask_hub(socket) if known.name == worker)
            await anyio.sleep(_POLL_SECONDS)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            yield live
            tasks.cancel_scope.cancel()
        await ask_hub(socket)  # without a hub, the last checks fail sooner than the watch looks
    except ExceptionGroup as errors:  # the watch and the checks end together
        raise errors.exceptions[0] from None


def _line(found: CheckOutcome) -> Line:
    reason = f"  {found.reason}" if found.reason else ""
    return Text.assemble((f"{found.outcome:<15}", _STYLES[found.outcome]), found.check, (reason, "dim"))


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
@asynchronous
async def attach(
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
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    # The options are checked before a model is loaded.
    worker_for = _worker_for(address, token, certificate, pairing_file, client_certificate, client_key)
    agent = await open_near(chosen_near(config, near), name="near")
    try:
        await _work(worker_for(agent), drain=drain, as_json=as_json)
    finally:
        with anyio.CancelScope(shield=True):
            await agent.aclose()


@app.command("list")
@asynchronous
async def list_workers(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """List the devices that this machine's hub knows: attached or not, their models, battery, heat and free memory."""
    hub = options.read_section(config, "hub", HubConfig)
    workers = await ask_hub(hub.socket)
    data = {"workers": [worker.model_dump(mode="json") for worker in workers]}
    show(data, (f"{worker.name:<20} {worker.text}" for worker in workers), as_json=as_json)


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


_PAGE_PORT: Final = 7447
_PACKAGES: Final = ("segno", "starlette", "uvicorn", "websockets")


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePlan:
    """The needs of the page, checked and read before the hub starts."""

    hub: HubConfig
    """The hub's section, with a certificate where other devices can reach it."""
    device: str
    token: str
    """The device's new token; empty: it has one already."""
    model: PageModel
    engine: Path

    @property
    def address(self) -> str:
        """Return where the page is served."""
        host = parse_address(self.hub.address).host
        return self.hub.web_address or str(Address(host=host, port=_PAGE_PORT))


def plan_page(hub: HubConfig, device: str, *, as_json: bool) -> PagePlan:
    """Read the model, and make a token for the device if it has none, and a certificate if other devices are to reach the hub without
    one. Raises `ConfigError` for what is missing, before anything is written."""
    if any(find_spec(package) is None for package in _PACKAGES):
        raise ConfigError("the hub's page needs starlette, uvicorn, websockets and segno", hint="pip install 'nearfar[serve,hub]'")
    if hub.client_authority is not None:
        raise ConfigError("browsers cannot show the certificate that client_authority demands", hint="leave out --web or client_authority")
    engine = engine_files()
    with show_progress(shown=not as_json) as progress:
        model = read_page_model(hub.web_model, progress)
    own = reachable(parse_address(hub.address))
    if not own.is_local and hub.certificate is None:
        hub = hub.model_copy(update={"certificate": CERTIFICATE, "key": KEY})
        ensure_certificate(CERTIFICATE, KEY, [own.host])
    is_known = hub.tokens.exists() and any(record.caller == device for record in read_tokens(hub.tokens))
    token = "" if is_known else add_token(hub.tokens, device, scopes=(Scope.ATTACH,)).token
    return PagePlan(hub=hub, device=device, token=token, model=model, engine=engine)


@asynccontextmanager
async def open_page(hub: Hub, plan: PagePlan, *, insecure: bool) -> AsyncIterator[str]:
    """Serve the page until the context ends, and yield its link for the device. Raises `ConfigError` as `serve_page` does."""
    from ..serve.hub import serve_page

    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config = ServeConfig(address=plan.address, certificate=plan.hub.certificate, key=plan.hub.key)
    async with serve_page(hub, plan.model, plan.engine, config, insecure=insecure) as url:
        parts = urlsplit(url)
        host = reachable(Address(host=parts.hostname or "", port=parts.port or _PAGE_PORT))
        yield f"{parts.scheme}://{host}/" + (f"#token={quote(plan.token)}" if plan.token else "")


def page_data(plan: PagePlan, link: str) -> dict[str, Any]:
    """Return the page for `--json`."""
    return {"web": link, "device": plan.device, "model": plan.model.described["name"]}


def page_lines(plan: PagePlan, link: str) -> Iterator[Line]:
    """Yield the link, as a QR code where it holds a token."""
    if not plan.token:
        yield Note(f"{plan.device} is paired already: open {link} on it; --device NAME pairs another one", "")
        return
    code = qr_code(link)
    if code.plain.index("\n") <= output.width:
        yield code
    yield Note(f"On {plan.device}, scan this code, or open the link. Keep it secret: with it, any browser attaches as {plan.device}.", "")
    yield Text(link)
    if plan.hub.certificate is not None:
        yield Note("The browser warns of a certificate that no authority has signed: accept it once.")
    if plan.device not in plan.hub.workers:
        yield Note(f'Tasks use it with [hub.workers.{plan.device}] in nearfar.toml; trust = "near" there allows private text.')
