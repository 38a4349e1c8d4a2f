"""Serve a `Hybrid` as an agent of the A2A protocol 1.0 on three transports: gRPC, JSON-RPC and HTTP+JSON."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import grpc
import orjson
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.grpc_handler import GrpcHandler, GrpcServerCallContextBuilder
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    HTTPAuthSecurityScheme,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SecurityRequirement,
    SecurityScheme,
    SendMessageRequest,
    StringList,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    a2a_pb2,
)
from a2a.utils import errors
from a2a.utils.constants import (
    A2A_JSON_MEDIA_TYPE,
    AGENT_CARD_WELL_KNOWN_PATH,
    PROTOCOL_VERSION_0_3,
    PROTOCOL_VERSION_1_0,
    VERSION_HEADER,
    TransportProtocol,
)
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import ContentTypeNotSupportedError, VersionNotSupportedError
from a2a.utils.proto_utils import validate_proto_required_fields
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from ...protocols import IdempotencyConflict, InvalidRequest, ModelNotFound, NearfarError, NotFound, PermissionDenied, Unsupported
from ...protocols.access import Access, Context
from ...protocols.address import Address
from ...protocols.security import IDENTITY, Identity, Scope, Tokens, check_exposure
from ...protocols.server import listening
from ...protocols.tls import server_tls
from ..agents import AgentHandle
from ..compose.hub import ServeConfig
from ..hybrid import Hybrid
from ..serve import serve_app
from ..serve.callers import Callers, OriginCheck
from ..serve.requests import ClientLeft, Receive, Send, encoded, openai_error, read_body, status_of
from ..serve.requests import Scope as Asgi
from .tasks import A2aTasks

logger = logging.getLogger(__name__)

_SERVICE: Final = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]
_CARD_CACHE: Final = "public, max-age=300"
_JSON: Final = ("application/json", A2A_JSON_MEDIA_TYPE)
_UNKNOWN_CALLER: Final = 401
_UNSUPPORTED_TYPE: Final = 415
REST_PATH: Final = "/rest"
"""Path below which HTTP+JSON is served. JSON-RPC is served at `/`."""
MODES: Final = ("text/plain", "application/json")
"""Media types of the parts that a message may have."""
AGENTS_EXTENSION: Final = "urn:nearfar:a2a:agents:1"
"""Names the list of agents on the extended card."""
_BEARER: Final = "bearer"


def agent_card(hybrid: Hybrid, *, needs_token: bool) -> AgentCard:
    """Return the card that everyone sees, without the addresses: skills, and nothing of models or prices."""
    card = AgentCard(
        name="nearfar",
        description="Works on tasks on its owner's device, and asks models in the cloud where the owner's policy allows it.",
        version=version("nearfar"),
        capabilities=AgentCapabilities(streaming=True, push_notifications=False, extended_agent_card=True),
        default_input_modes=MODES,
        default_output_modes=["text/plain"],
        skills=_skills(hybrid),
    )
    if needs_token:
        scheme = HTTPAuthSecurityScheme(scheme="Bearer", description="A token of `nearfar serve token add` with the scope tasks.")
        card.security_schemes[_BEARER].CopyFrom(SecurityScheme(http_auth_security_scheme=scheme))
        card.security_requirements.append(SecurityRequirement(schemes={_BEARER: StringList()}))
    return card


def interfaces(url: str, grpc_address: str) -> Iterator[AgentInterface]:
    """Yield the addresses of the three transports, the preferred one first."""
    bindings = (
        (TransportProtocol.JSONRPC, f"{url}/"),
        (TransportProtocol.HTTP_JSON, f"{url}{REST_PATH}"),
        (TransportProtocol.GRPC, grpc_address),
    )
    for binding, address in bindings:
        yield AgentInterface(url=address, protocol_binding=binding.value, protocol_version=PROTOCOL_VERSION_1_0)


def extended_card(card: AgentCard, hybrid: Hybrid) -> AgentCard:
    """Return a card that also lists the agents with their models and prices."""
    extended = AgentCard()
    extended.CopyFrom(card)
    params = ParseDict({"agents": [_told(handle) for handle in hybrid.pool]}, Struct())
    listed = AgentExtension(
        uri=AGENTS_EXTENSION, description="The agents, with side, model, and US dollars per million tokens.", params=params
    )
    extended.capabilities.extensions.append(listed)
    return extended


def _skills(hybrid: Hybrid) -> Iterator[AgentSkill]:
    """Yield a skill for tasks of any kind, and one for each class of tasks that the policy's rules name."""
    yield AgentSkill(id="task", name="Task", description="Works on a task of any kind.", tags=["task"])
    classes = {name for rule in hybrid.policy.rules for name in rule.when.task_class}
    for name in sorted(classes):
        description = f'Works on tasks of the class {name}: metadata {{"nearfar": {{"task_class": "{name}"}}}}.'
        yield AgentSkill(id=f"task/{name}", name=name, description=description, tags=name.split("/"))


def _told(handle: AgentHandle) -> dict[str, Any]:
    prices = handle.prices
    told: dict[str, Any] = {"name": handle.name, "side": str(handle.side), "model": handle.model}
    return told if prices is None else {**told, "input": float(prices.input), "output": float(prices.output)}


@contextmanager
def protocol_errors() -> Iterator[None]:
    """Raise the protocol's errors for ours."""
    try:
        yield
    except NearfarError as error:
        raise _error(error) from error


def _error(error: NearfarError) -> errors.A2AError:
    match error:
        case InvalidRequest() | IdempotencyConflict() | ModelNotFound():
            return errors.InvalidParamsError(str(error))
        case NotFound():
            return errors.TaskNotFoundError(error.message)
        case PermissionDenied():
            return errors.InvalidRequestError(str(error))
        case Unsupported():
            return errors.UnsupportedOperationError(str(error))
    return errors.InternalError(f"{type(error).__name__}: {error}")


class A2aHandler(RequestHandler):
    """Answers calls for the caller whose token was checked.

    Args:
        tasks: the tasks of all callers.
        card: the card that everyone sees.
    """

    def __init__(self, tasks: A2aTasks, card: AgentCard) -> None:
        self._tasks = tasks
        self._card = card

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        """Begin or continue a task, and return it when it has ended or waits for its caller."""
        validate_proto_required_fields(params)
        validate_history_length(params.configuration)
        with protocol_errors():
            live = await self._tasks.send(params.message, IDENTITY.get().caller)
            is_impatient = params.configuration.return_immediately
            task = live.snapshot() if is_impatient else await self._tasks.settled(live)
        return apply_history_length(task, params.configuration)

    async def on_message_send_stream(self, params: SendMessageRequest, context: ServerCallContext) -> AsyncGenerator[Event, None]:
        """Begin or continue a task, and yield it and what happens until it has ended or waits for its caller."""
        validate_proto_required_fields(params)
        validate_history_length(params.configuration)
        with protocol_errors():
            live = await self._tasks.send(params.message, IDENTITY.get().caller)
            async with aclosing(self._tasks.updates(live)) as updates:
                async for update in updates:
                    yield apply_history_length(update, params.configuration) if isinstance(update, Task) else update

    async def on_subscribe_to_task(self, params: SubscribeToTaskRequest, context: ServerCallContext) -> AsyncGenerator[Event, None]:
        """Yield a task and what happens until it has ended."""
        validate_proto_required_fields(params)
        with protocol_errors():
            async with aclosing(self._tasks.follow(params.id, IDENTITY.get().caller)) as updates:
                async for update in updates:
                    yield update

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """Return a task."""
        validate_proto_required_fields(params)
        validate_history_length(params)
        with protocol_errors():
            return apply_history_length(await self._tasks.read(params.id, IDENTITY.get().caller), params)

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the caller's tasks."""
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        with protocol_errors():
            page = await self._tasks.list(params, IDENTITY.get().caller)
        for task in page.tasks:
            task.CopyFrom(apply_history_length(task, params))
            if not params.include_artifacts:
                task.ClearField("artifacts")
        return page

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Cancel a task, and return it."""
        validate_proto_required_fields(params)
        with protocol_errors():
            return await self._tasks.cancel(params.id, IDENTITY.get().caller)

    async def on_get_extended_agent_card(self, params: GetExtendedAgentCardRequest, context: ServerCallContext) -> AgentCard:
        """Return the card with the agents' models and prices."""
        return extended_card(self._card, self._tasks.hybrid)

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Refuse: this agent calls no address that a caller names."""
        raise errors.PushNotificationNotSupportedError

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Refuse, as above."""
        raise errors.PushNotificationNotSupportedError

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Refuse, as above."""
        raise errors.PushNotificationNotSupportedError

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Refuse, as above."""
        raise errors.PushNotificationNotSupportedError


@dataclass(frozen=True, slots=True)
class A2aServer:
    """A server that runs."""

    url: str
    """URL of its JSON-RPC; the card is found below it."""
    grpc_address: str
    """`host:port` of its gRPC."""
    access: Access
    """Lets callers in."""


class A2aGate:
    """Lets requests of callers with a token through; the card is everyone's.

    Args:
        app: answers them.
        callers: finds out who calls.
    """

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == AGENT_CARD_WELL_KNOWN_PATH:
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        headers = Headers(scope=scope)
        if _media_type(headers) not in ("", *_JSON):
            await answer.refuse_type(scope["path"])
            return
        try:
            identity = self._callers.identify(scope, headers, Scope.TASKS)
            await self._callers.access.run(identity, self._answered(identity, scope, headers, receive, answer))
        except ClientLeft:
            logger.debug("a client left before its request had arrived")
        except NearfarError as error:
            await answer.refuse(error)

    async def _answered(self, identity: Identity, scope: Asgi, headers: Headers, receive: Receive, answer: "_Answer") -> None:
        IDENTITY.set(identity)  # each request runs in a task of its own
        with self._callers.call(identity) as share:
            async with share.reading:
                body = await read_body(receive, headers)
            with share.holding(len(body)):
                await self._app(scope, _replayed(body, receive), answer.send)


class _Answer:
    """The response to one request."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False

    async def send(self, message: Any) -> None:  # noqa: ANN401 - as ASGI types it
        self._has_begun = True
        await self._send(message)

    async def refuse(self, error: NearfarError) -> None:
        """Send an error, unless the response has begun: then its connection just ends."""
        if self._has_begun:
            return
        body = orjson.dumps(openai_error(error))
        await self._reply(body, status_of(error, openai_error))

    async def refuse_type(self, path: str) -> None:
        """Refuse a request whose body is announced as something else than JSON, as a page's form is."""
        error = ContentTypeNotSupportedError("the body must be JSON: content-type application/json")
        if path.startswith(REST_PATH):
            payload = build_rest_error_payload(error)
            payload["error"]["code"] = _UNSUPPORTED_TYPE
        else:
            payload = build_error_response(None, error)
        await self._reply(orjson.dumps(payload), _UNSUPPORTED_TYPE)

    async def _reply(self, body: bytes, status: int) -> None:
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        if status == _UNKNOWN_CALLER:
            headers["www-authenticate"] = "Bearer"
        await self.send({"type": "http.response.start", "status": status, "headers": encoded(headers)})
        await self.send({"type": "http.response.body", "body": body})


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a function that gives the body, and then whatever else comes."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Any:  # noqa: ANN401 - as ASGI types it
        return messages.pop() if messages else await receive()

    return next_message


def make_a2a_app(handler: A2aHandler, card: AgentCard, config: ServeConfig, callers: Callers, hosts: Sequence[str]) -> Starlette:
    """Return the app with the card, JSON-RPC at `/`, and HTTP+JSON."""
    own = [route for route in create_rest_routes(handler, path_prefix=REST_PATH) if isinstance(route, Route)]  # no tenants
    routes: list[BaseRoute] = [*create_agent_card_routes(card, cache_control=_CARD_CACHE), *create_jsonrpc_routes(handler, "/"), *own]
    guards = [Middleware(OriginCheck, hosts=(*config.hosts, *hosts), origins=config.origins), Middleware(A2aGate, callers=callers)]
    return Starlette(routes=routes, middleware=guards)


class VersionCheck(GrpcServerCallContextBuilder):
    """Refuses calls of another major version, which the package checks over HTTP only."""

    def build(self, context: Context) -> ServerCallContext:
        """Return the context of a call."""
        given = next((value for key, value in context.invocation_metadata() or () if key == VERSION_HEADER.lower()), "")
        version = str(given or PROTOCOL_VERSION_0_3)
        if version.partition(".")[0] != "1":
            raise VersionNotSupportedError(f"A2A version {version!r} is not supported: this agent speaks 1.0")
        return ServerCallContext()


def grpc_handlers(handler: A2aHandler) -> grpc.GenericRpcHandler:
    """Return the RPCs of the service."""
    servicer = GrpcHandler(handler, VersionCheck())
    methods = {method.name: _rpc(method, getattr(servicer, method.name)) for method in _SERVICE.methods}
    return grpc.method_handlers_generic_handler(_SERVICE.full_name, methods)


def _rpc(method: Any, answer: Callable[..., Any]) -> "grpc.RpcMethodHandler[Any, Any]":  # noqa: ANN401 - protobuf's descriptor of a method
    read, write = GetMessageClass(method.input_type).FromString, GetMessageClass(method.output_type).SerializeToString
    if not method.server_streaming:
        return grpc.unary_unary_rpc_method_handler(answer, read, write)

    async def stream(request: object, context: Context) -> None:
        async for message in answer(request, context):
            await context.write(message)

    return grpc.unary_stream_rpc_method_handler(stream, read, write)


@asynccontextmanager
async def serve_a2a(
    hybrid: Hybrid,
    config: ServeConfig,
    *,
    address: Address,
    grpc_port: int,
    tokens: Tokens | None = None,
    insecure: bool = False,
    drain: float = 0.0,
    tasks: Callable[[Hybrid, ServeConfig], A2aTasks] = A2aTasks,
) -> AsyncIterator[A2aServer]:
    """Serve a `hybrid` that keeps runs until the context ends. Without tokens, every program of this machine may call.

    Raises `ConfigError` for addresses that cannot be used, or that others can reach without TLS and tokens.

    Args:
        hybrid: works on the tasks; it stays open.
        config: what each caller may do, certificate and key, and the names of the server.
        address: the host and port of JSON-RPC and HTTP+JSON.
        grpc_port: the port of gRPC at the same host; 0: any free one.
        tokens: those of the callers.
        insecure: plain text is wanted; refused beyond this machine.
        drain: seconds that requests get to finish in the end.
        tasks: makes the tasks of the server.
    """
    access = Access(tokens)
    tls = server_tls(config.certificate, config.key, None)
    check_exposure(address, authenticator=access.authenticator, tls=tls, insecure=insecure)
    card = agent_card(hybrid, needs_token=not access.authenticator.is_open)
    async with tasks(hybrid, config) as kept:
        handler = A2aHandler(kept, card)
        services: Mapping[str, grpc.GenericRpcHandler] = {_SERVICE.full_name: grpc_handlers(handler)}
        where = str(Address(host=address.host, port=grpc_port))
        async with listening(services, where, access=access, tls=tls, insecure=insecure, closing=_nothing, time_limit=drain) as bound:

            def make(url: str) -> ASGIApp:
                card.supported_interfaces.extend(interfaces(url, str(bound)))
                return make_a2a_app(handler, card, config, Callers(access), [address.host])

            async with serve_app(make, address, config, drain=drain) as (_, url):
                yield A2aServer(url, str(bound), access)


async def _nothing() -> None:
    """End nothing: the tasks end after the servers."""
