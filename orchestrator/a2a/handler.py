"""`A2aHandler`: answers the calls of all transports, and makes the agent card: a part for everyone, a part for callers with a token."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from importlib.metadata import version
from typing import Any, Final

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler
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
)
from a2a.utils import errors
from a2a.utils.constants import PROTOCOL_VERSION_1_0, TransportProtocol
from a2a.utils.proto_utils import validate_proto_required_fields
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct

from ...protocols import IdempotencyConflict, InvalidRequest, ModelNotFound, NearfarError, NotFound, PermissionDenied, Unsupported
from ...protocols.security import IDENTITY
from ..agents.pool import AgentHandle
from ..hybrid.hybrid import Hybrid
from .tasks import A2aTasks

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
