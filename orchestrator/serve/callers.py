"""The callers of the HTTP server: known by their tokens, kept within limits and apart from web pages; and the options of their turns.

Any page can make a browser send a request: one is refused by the names in `Host` (DNS rebinding) and `Origin`.
"""

import ipaddress
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from pydantic import Field, ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp

from ...protocols import ModelNotFound, PermissionDenied, Sensitivity, Side
from ...protocols.access import Access, CallerShares, FailedAttempts, Share, home_of
from ...protocols.limits import CALLS_OF_A_CALLER
from ...protocols.security import Credentials, Identity, Scope
from ...protocols.steps import Value
from ..compose.hub import CallerConfig
from ..hybrid import Hybrid
from ..hybrid.arguments import TurnOptions
from ..task import Caching
from ..task.modes import Mode, Strategy
from ..task.policy import Policy
from ..task.routing_policy import AmountsConfig, LimitsConfig
from .requests import BadField, Receive, Send, anthropic_error, encoded, openai_error, warning
from .requests import Scope as Asgi

ADMISSION_KEY: Final = "nearfar.admission"
"""Key of an ASGI scope under which the caller's `AdmittedCaller` stands, once its token was checked."""
_KEY: Final = "x-api-key"
"""Header in which Anthropic's clients send their key."""
PREFIX: Final = "nearfar/"
"""In front of the names of models that are no agent's."""
BY_POLICY: Final = f"{PREFIX}auto"
"""The model that the policy decides about."""
_SIDES: Final[Mapping[str, Mode]] = {f"{PREFIX}near": Mode.ONLY_ON_DEVICE, f"{PREFIX}far": Mode.ONLY_IN_CLOUD}
_NO_TURNS: Final = (Strategy.MINIONS, Strategy.SUBTASKS, Strategy.AUTO)
"""Strategies without a name of their own: two cannot hand calls back, and one would be called like the policy."""
_OF_MODE: Final[Mapping[Mode, frozenset[Side]]] = {
    Mode.ONLY_ON_DEVICE: frozenset({Side.NEAR}),
    Mode.ONLY_IN_CLOUD: frozenset({Side.FAR}),
}
_HEADER: Final = "x-nearfar-"
_LISTS: Final = ("tags", "allowed_tools")


@dataclass(frozen=True, slots=True)
class AdmittedCaller:
    """A caller, and the rules by which it was let in."""

    identity: Identity
    access: Access
    """Ends what runs with a token that is revoked or expires."""


class Callers:
    """Finds out who calls, by the rules of `access`, and what each has open."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._attempts = FailedAttempts(time.monotonic)
        self._shares = CallerShares()

    def identify(self, asgi: Asgi, headers: Mapping[str, str], needed: Scope) -> Identity:
        """Return the caller of a request.

        Raise `Unauthenticated` for a token that is missing, wrong or expired, `PermissionDenied` for one without the `needed` scope,
        `RateLimited` where too many wrong ones came from an address.
        """
        key = headers.get(_KEY)
        shown = headers.get("authorization") or ("" if key is None else f"Bearer {key}")
        home = home_of(_peer(asgi.get("client")))

        def find() -> Identity:
            return self.access.authenticator.identify(Credentials(shown))

        identity = find() if home is None or not shown else self._attempts.identify(home, shown, find)
        identity.require(needed)
        return identity

    def call(self, identity: Identity) -> Share:
        """Return the share of a caller, to count a request while it is served. Raise `RateLimited` if too many are."""
        return self._shares.call(("caller", identity.caller), CALLS_OF_A_CALLER)


def _peer(client: tuple[str, int] | None) -> str:
    """Return the other end as gRPC writes it."""
    if client is None:
        return ""
    host, port = client
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


_LOCAL: Final = "localhost"
_ANTHROPIC: Final = "/v1/messages"


class OriginCheck:
    """Lets requests through that name this server, and come from a program or from a page of an allowed origin.

    Args:
        app: serves what is let through.
        hosts: names of the server. A page that has rebound its own name cannot use them, nor an address.
        origins: origins whose pages may call, in addition to those that this server serves itself.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset({_LOCAL, *(host.lower() for host in hosts)})
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := self._problem(Headers(scope=scope), scope["scheme"])):
            await _refuse(scope, send, PermissionDenied(problem, hint="[serve] hosts and origins of nearfar.toml name those that may call"))
        else:
            await self._app(scope, receive, send)

    def _problem(self, headers: Headers, scheme: str) -> str:
        host, *others = headers.getlist("host") or [""]
        if others:
            return "a request must name one host"
        name = _host_name(host)
        if name not in self._hosts and not _is_address(name):
            return f"this server is not called {name[:100]!r}"
        known = (*self._origins, f"{scheme}://{host}".lower())
        strange = next((origin for origin in headers.getlist("origin") if origin.lower() not in known), None)
        return "" if strange is None else f"pages of {strange[:100]!r} may not call this server"


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refuse(scope: Asgi, send: Send, error: PermissionDenied) -> None:
    body = orjson.dumps(anthropic_error(error, "") if scope["path"].startswith(_ANTHROPIC) else openai_error(error))
    headers = encoded({"content-type": "application/json", "content-length": str(len(body)), "connection": "close"})
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class RequestOptions(Value):
    """The options that a request states: the object `nearfar` of its body, or headers of the same names."""

    mode: Mode | None = None
    """Sides that may serve it."""
    sensitivity: Sensitivity | None = None
    """`private` keeps it on this device."""
    strategy: Strategy | None = None
    """Way in which both sides work on it."""
    session: str | None = Field(default=None, min_length=1)
    """Name of its conversation."""
    tags: tuple[str, ...] = ()
    """Words that rules match."""
    task_class: str = ""
    """Kind of task, from coarse to fine."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of spending."""
    cache: Caching = "use"
    """`no-store`: neither answer it from a cache nor keep its answer."""
    allowed_tools: tuple[str, ...] | None = None
    """Names of the only tools that it may call."""
    debug: bool = False
    """Tell all attempts, calls and reasons in the answer."""


def read_options(headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[RequestOptions, list[str]]:
    """Return the options of a request, and warnings about those that are not known. Raise `BadField` for values that cannot be used.

    The body comes before the headers.
    """
    given = body.get("nearfar") or {}
    if not isinstance(given, dict):
        raise BadField("nearfar must be an object", param="nearfar", hint='{"mode": "only_on_device"}')
    known = {name: value for name, value in given.items() if name in RequestOptions.model_fields and value is not None}
    try:
        options = RequestOptions.model_validate(dict(_of_headers(headers)) | known)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BadField(first["msg"], param=".".join(("nearfar", *map(str, first["loc"])))) from None
    return options, [warning("ignored", f"nearfar.{name}") for name in given if name not in RequestOptions.model_fields]


def _of_headers(headers: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    for name in RequestOptions.model_fields:
        text = headers.get(_HEADER + name.replace("_", "-"))
        if text is not None:
            yield name, _parsed(name, text)


def _parsed(name: str, text: str) -> object:
    if name in _LISTS:
        return tuple(filter(None, (part.strip() for part in text.split(","))))
    if name != "limits":
        return text.strip()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise BadField("the header x-nearfar-limits is no JSON", param="nearfar.limits", hint='{"task": {"dollars": 0.01}}') from None


def model_names(hybrid: Hybrid, allowed: CallerConfig) -> list[str]:
    """Return the names of the models that a caller may ask for, whether or not their agents can be reached now."""
    sides = {handle.side for handle in hybrid.pool}
    by_side = [name for name, mode in _SIDES.items() if _OF_MODE[mode] & sides]
    strategies = [f"{PREFIX}{strategy}" for strategy in Strategy if strategy not in _NO_TURNS]
    names = [BY_POLICY, *by_side, *strategies, *(handle.name for handle in hybrid.pool)]
    return [name for name in names if not allowed.models or name in allowed.models]


def turn_options(hybrid: Hybrid, caller: str, allowed: CallerConfig, model: object, asked: RequestOptions) -> TurnOptions:
    """Return the options of a turn that a caller asks of a model.

    Raise `ModelNotFound` for a name that it cannot have, `PermissionDenied` where the request asks for more than its token allows.
    """
    policy = hybrid.policy
    options: TurnOptions = {"user": allowed.user or caller, "cache": asked.cache}
    named = _named(model, model_names(hybrid, allowed))
    options |= named
    mode = _narrowest_mode(policy, allowed.mode, named.get("mode"), asked.mode)
    if mode is not None:
        options["mode"] = mode
    if asked.strategy is not None:
        options["strategy"] = asked.strategy
    if (sensitivity := _narrowest_sensitivity(policy, allowed.sensitivity, asked.sensitivity)) is not None:
        options["sensitivity"] = sensitivity
    limits = narrowed(narrowed(policy.limits, allowed.limits), asked.limits)
    if limits != policy.limits:
        options["policy"] = policy.model_copy(update={"limits": limits})
    if asked.allowed_tools is not None:
        options["allowed_tools"] = asked.allowed_tools
    return options | {"tags": asked.tags, "task_class": asked.task_class}


def _named(model: object, known: list[str]) -> TurnOptions:
    if not isinstance(model, str) or not model:
        raise BadField("model must be a name", param="model", hint=f'"{BY_POLICY}", or one of GET /v1/models')
    if model not in known:
        raise ModelNotFound(f"there is no model {model!r}", hint=f"the models are {', '.join(known)}")
    if model == BY_POLICY:
        return {}
    if model in _SIDES:
        return {"mode": _SIDES[model]}
    return {"strategy": model.removeprefix(PREFIX)} if model.startswith(PREFIX) else {"agent": model}


def _narrowest_mode(policy: Policy, *given: Mode | str | None) -> Mode | None:
    """Return the last mode given; None where all are. Raise `PermissionDenied` if one lets in a side that those before it exclude."""
    mode: Mode | None = None
    sides = _OF_MODE.get(policy.mode, frozenset(Side))
    for each in given:
        if each is None:
            continue
        mode = Mode(each)
        wanted = _OF_MODE.get(mode, frozenset(Side))
        if not wanted <= sides:
            raise PermissionDenied(f"mode {mode} is more than this caller may ask for", hint="its token or the policy is narrower")
        sides = wanted
    return mode


def _narrowest_sensitivity(policy: Policy, allowed: Sensitivity | None, asked: Sensitivity | None) -> Sensitivity | None:
    """Return the sensitivity that a caller's section or request declares; None: the policy decides, which declares nothing of one task."""
    most = allowed or policy.sensitivity
    if asked is Sensitivity.PUBLIC and most is Sensitivity.PRIVATE:
        hint = 'its server\'s owner allows it: [serve.callers.NAME] sensitivity = "public"'
        raise PermissionDenied("the tasks of this caller are private and cannot be declared public", hint=hint)
    return asked or allowed


def narrowed(limits: LimitsConfig, further: LimitsConfig) -> LimitsConfig:
    """Return limits that keep within both."""
    given = further.model_fields_set
    amounts = {name: _least(getattr(limits, name), getattr(further, name)) for name in given - {"unknown_price"}}
    price = {"unknown_price": "refuse"} if "unknown_price" in given and further.unknown_price == "refuse" else {}
    return limits.model_copy(update={**amounts, **price})


def _least(one: AmountsConfig, other: AmountsConfig) -> AmountsConfig:
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in AmountsConfig.model_fields}
    return AmountsConfig(**{name: min((each for each in pair if each is not None), default=None) for name, pair in pairs.items()})
