"""`nearfar serve hub --web`: pair a browser's tab, and show the link to the hub's page."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from rich.text import Text

from ...protocols import ConfigError
from ...protocols.address import Address, parse_address
from ...protocols.hub import Hub
from ...protocols.token_file import add_token, read_tokens
from ...protocols.tokens import Scope
from ..compose.http import ServeConfig
from ..compose.hub import CERTIFICATE, KEY, HubConfig, PageModel, engine_files, reachable, read_page_model
from ..util.credentials import ensure_certificate
from .models import show_progress
from .printing import Line, Note, output
from .worker import qr_code

_PORT: Final = 7447
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
        return self.hub.web_address or str(Address(host=host, port=_PORT))


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
        host = reachable(Address(host=parts.hostname or "", port=parts.port or _PORT))
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
