"""`A2aHandler`: answers the calls of all transports."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils import errors
from a2a.utils.proto_utils import validate_proto_required_fields
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size

from ...protocols import IdempotencyConflict, InvalidRequest, ModelNotFound, NearfarError, NotFound, PermissionDenied, Unsupported
from ...protocols.security import IDENTITY
from .card import extended_card
from .tasks import A2aTasks


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
