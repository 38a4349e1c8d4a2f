"""Tasks: the prompt as messages, all that decides how it is served, and the scope of its steps.

The modules of this room are values that every room shares: they import `protocols` alone, and `util`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal, Protocol
from uuid import uuid4

from pydantic import BaseModel, Field, ValidationError

from ...protocols import Capabilities, InvalidOutput, InvalidRequest, JsonSchema, Message, ToolCall, ToolResult
from ...protocols.steps import Value
from ...protocols.validation import check_attachments, parse_output
from ..util.text import fingerprint
from .decisions import SelectionDecision
from .events import CallerTools
from .foreign import read_content
from .labels import OF_CONTEXT, Chosen, Label, RecalledItem
from .modes import Strategy
from .policy import Policy
from .rules import Ruling

Caching = Literal["use", "no-store"]
"""`use`: the task may be answered from a cache and its answers be stored; `no-store`: neither."""


class Sampling(Value):
    """Sampling of the steps of the agent that answers; planners, supervisors and second opinions keep to the policy.

    None: the policy decides, and else the agent's own default.
    """

    temperature: float | None = Field(default=None, ge=0, le=2)
    """From 0, the likeliest token every time, to 2."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of each step's output; a lower limit of the policy holds, too."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Makes sampling repeatable, where the agent can."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), max_length=8)
    """Texts that end the output, and are left out of it."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample only from the likeliest tokens that have this probability together. Agents without this or the next four ignore them."""
    top_k: int | None = Field(default=None, gt=0, lt=2**31)
    """Sample only from this many of the likeliest tokens."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Sample only from tokens at least this many times as likely as the likeliest one."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Lower the logit of each token that the output holds already."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Lower a token's logit for each time that the output holds it."""
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """Likeliest tokens to report at each place of the text; only agents that report log-probabilities may then answer."""


class ForeignMessage(Protocol):
    """A message of LangChain, which is read by its attributes: LangChain itself is not needed."""

    @property
    def type(self) -> str:
        """Return `human`, `ai`, `system`, `tool` or `chat`."""

    @property
    def content(self) -> Any:  # noqa: ANN401 - a text, or a list of parts
        """Return what was said."""


Prompt = str | Sequence[Message | Mapping[str, Any] | tuple[str, str] | ForeignMessage]
"""One text, or the messages of a conversation: ours, `{"role": ..., "content": ...}`, `(role, text)`, or LangChain's."""
CHARACTERS_PER_TOKEN: Final = 4
"""Characters per token of ordinary English under the usual tokenizers: an estimate for prompts before they are sent."""
_HINT: Final = 'Message.user("...") makes one, and {"role": "user", "content": "..."} is one, too'
_ROLES: Final = {"developer": "system", "human": "user", "ai": "assistant"}
"""Roles of OpenAI's API and of LangChain that stand for another one."""
STATE: Final = "nearfar_state"
"""Key of a LangChain message's `additional_kwargs` under which the provider's state of a turn is kept."""
_NOT_SAID: Final = frozenset({"tool_use", "tool_call", "function_call", "thinking", "redacted_thinking", "reasoning"})
"""Kinds of parts of a model's message that are no text of it: its calls stand elsewhere in the message, its thoughts are its own."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The capabilities that a task needs from an agent."""

    tools: bool = False
    """It calls tools."""
    json_schema: bool = False
    """Its answer must be valid against a JSON Schema."""
    images: bool = False
    """Its messages carry images."""
    files: bool = False
    """Its messages carry PDF documents."""
    logprobs: bool = False
    """Its sampling asks for log-probabilities."""

    def missing_in(self, capabilities: Capabilities) -> list[str]:
        """Return the names of the needed capabilities that `capabilities` lack."""
        return [each.name for each in fields(self) if getattr(self, each.name) and not getattr(capabilities, each.name)]


class Task(Value):
    """One task with everything that decides how it is served."""

    messages: tuple[Message, ...]
    """The conversation, the prompt last."""
    instructions: str = ""
    """The app's instructions. Once the task is prepared, its first message is a system message that begins with them."""
    context: str | None = None
    """A long text that the task is about, separate from its messages: for `minions`, which keeps it on this device, and for `subtasks`."""
    memory: str | None = None
    """Items recalled for it, as quoted data behind its last prompt, and behind that of each of its parts."""
    recalled: tuple[RecalledItem, ...] = Field(default=(), exclude=True)
    """The items that `memory` quotes; not part of the graph's state."""
    output_schema: JsonSchema | None = None
    """JSON Schema that the answer must be valid against; None: a text."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds for the whole task, over all attempts."""
    idempotency_key: str = Field(default_factory=lambda: uuid4().hex, min_length=1, max_length=100)
    """Names the task: its steps' keys derive from it, so a repeated task is not paid twice within the gateway's window."""
    policy: Policy = Policy()
    """The policy that serves the task."""
    ruling: Ruling | None = None
    """The decision of the policy's rules on the task, which are evaluated once; None: not evaluated yet."""
    stated: frozenset[str] = frozenset()
    """Keys of the policy that were given with the task, such as `mode`: rules that only prefer something yield to them."""
    task_class: str = Field(default="", max_length=200, pattern=r"^[^/]*(/[^/]+){0,9}$")
    """Class of the task from coarse to fine, as the app knows it: `billing/refund`. Empty: unknown."""
    tags: tuple[str, ...] = ()
    """The app's own words, for rules to match."""
    language: str | None = None
    """ISO 639-1 code of the prompt's language; None: detected if a rule asks for it."""
    session: str | None = Field(default=None, min_length=1)
    """Id of the conversation that the task belongs to: a follow-up goes to the agent that answered last."""
    turn: int | None = Field(default=None, ge=1)
    """Number of its last messages that are the prompt of this turn, if the session keeps the earlier ones. None: all messages are its
    prompt."""
    user: str = Field(default="", max_length=200)
    """The user for whom the task is served, if an app serves several people."""
    cache: Caching = "use"
    """Let it be answered from a cache and its answers be stored (`use`), or neither (`no-store`)."""
    unstick: bool = False
    """Choose an agent without regard to the one that answered last in the session."""
    agent: str = ""
    """Name of the only agent that may answer; empty: the router chooses."""
    sampling: Sampling = Sampling()
    """Sampling of the agent that answers."""
    caller: CallerTools | None = None
    """The tools that the caller runs, calls of which end the task: it is a turn of a conversation; None: it is a whole task."""
    role: str = ""
    """Name of the role that the task is given to, and in a part of it of the role whose work it is; empty: none."""
    allowed_tools: frozenset[str] | None = None
    """The only tools that it may call; the guard does not ask about calling them. None: all tools, as far as the guard allows."""
    planned: Chosen = Chosen()
    """Choices made before the run read untrusted content: by the user's plan, and for a part of a task by its whole."""
    prompt: str | None = None
    """The last prompt as the user wrote it, if other text was added behind it; None: nothing was added."""
    label: Label = Label()
    """Label of inputs whose provenance the messages do not show: the session, the memory, a context, results of other parts."""
    reasons: tuple[str, ...] = ()
    """Reasons for its strategy, if the user did not choose it; the first of `Result.reasons`."""
    selection: SelectionDecision | None = Field(default=None, exclude=True)
    """The choice that `auto` made; not part of the graph's state."""

    def needs(self, *, has_tools: bool) -> Needs:
        """Return the capabilities that its agents need, where it `has_tools` or not. Those of `minions` and `subtasks` plan and sum up, and
        call no tools."""
        attached = [attachment.is_image for message in self.messages for attachment in message.attachments]
        is_answered = self.policy.strategy not in (Strategy.MINIONS, Strategy.SUBTASKS)
        return Needs(
            tools=is_answered and has_tools,
            json_schema=is_answered and self.output_schema is not None,
            images=True in attached,
            files=False in attached,
            logprobs=is_answered and self.sampling.top_logprobs is not None,
        )

    @property
    def said(self) -> tuple[str, ...]:
        """Return the words of the user and the app."""
        said = [message for message in self.messages if message.role in ("user", "system")]
        last = max(index for index, message in enumerate(said) if message.role == "user")
        return tuple(self.prompt if index == last and self.prompt is not None else message.text for index, message in enumerate(said))

    @property
    def without_history(self) -> "Task":
        """Return the task without the earlier turns of its session."""
        return self if self.turn is None else self.model_copy(update={"messages": self.messages[-self.turn :]})

    @property
    def asked(self) -> tuple[Message, ...]:
        """Return its prompt as the user wrote it: without earlier turns, and without texts that were added in front of it or behind."""
        messages = _without_instructions(self.without_history.messages, self.instructions)
        return messages if self.prompt is None else _with_last_prompt(messages, self.prompt)

    def with_instructions(self, general: str) -> "Task":
        """Return the task with its instructions, and the `general` ones before them, in front of its messages."""
        instructions = join_instructions(general, self.instructions)
        return self.model_copy(update={"instructions": instructions, "messages": with_instructions(self.messages, instructions)})

    def with_plan(self, plan: str) -> "Task":
        """Return the task with the user's own `plan` added to the last prompt."""
        return self.model_copy(update={"messages": self._messages_with(f"Plan:\n{plan}"), "planned": Chosen(plan=plan)})

    def with_context_in_prompt(self) -> "Task":
        """Return the task with its context behind its last prompt, for strategies that do not keep it separate."""
        if self.context is None:
            return self
        return self._with_quoted(self.context).model_copy(update={"context": None, "label": self.label.joined(OF_CONTEXT)})

    def with_memory_in_prompt(self) -> "Task":
        """Return the task with the recalled items behind its last prompt."""
        return self if self.memory is None else self._with_quoted(self.memory)

    def _with_quoted(self, text: str) -> "Task":
        own = last_words(self.messages) if self.prompt is None else self.prompt
        return self.model_copy(update={"messages": self._messages_with(text), "prompt": own})

    def _messages_with(self, text: str) -> tuple[Message, ...]:
        """Return the messages with a text behind the last prompt."""
        return _with_last_prompt(self.messages, f"{last_words(self.messages)}\n\n{text}")


def _with_last_prompt(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Return the messages with another text as the user's last one."""
    place = max(index for index, message in enumerate(messages) if message.role == "user")
    return (*messages[:place], messages[place].with_text(text), *messages[place + 1 :])


def join_instructions(*instructions: str) -> str:
    """Return several instructions as one text, the empty ones left out."""
    return "\n\n".join(filter(None, map(str.strip, instructions)))


def _without_instructions(messages: tuple[Message, ...], instructions: str) -> tuple[Message, ...]:
    """Return the messages as they were before `with_instructions`."""
    if not instructions.strip() or messages[0].role != "system" or not messages[0].text.startswith(instructions):
        return messages
    own = messages[0].text.removeprefix(instructions).strip()
    return (*([Message.system(own)] if own else []), *messages[1:])


def with_instructions(messages: Sequence[Message], instructions: str) -> tuple[Message, ...]:
    """Return the messages with instructions in front, as one system message with the one that stands there already.

    Chat templates of many models refuse a second system message.
    """
    if not instructions.strip():
        return tuple(messages)
    has_system = messages[0].role == "system"
    own = messages[0].text if has_system else ""
    return (Message.system(join_instructions(instructions, own)), *messages[has_system:])


def read_output(text: str, schema: JsonSchema, model: type[BaseModel] | None = None) -> Any:  # noqa: ANN401 - an object of any model
    """Return an answer as JSON that is valid against its schema or, if the schema is a model's, as an object of that model.

    Raises `InvalidOutput`, which carries the text.
    """
    value = parse_output(text, schema)
    if model is None:
        return value
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        problems = [f"at {'.'.join(map(str, ('$', *item['loc'])))}: {item['msg'].removeprefix('Value error, ')}" for item in found]
        raise InvalidOutput(f"the answer does not fit {model.__name__}: {'; '.join(problems)}", text=text) from error
    except Exception as error:  # a task boundary: the validators are the app's own code, and may stumble over an odd answer
        raise InvalidOutput(f"a validator of {model.__name__} failed: {type(error).__name__}: {error}", text=text) from error


def as_messages(prompt: object) -> tuple[Message, ...]:
    """Return the messages of a prompt. Raises `InvalidRequest` if there is nothing to answer, or something that is no message."""
    messages = (Message.user(prompt),) if isinstance(prompt, str) else _messages(prompt)
    if not messages or not any(message.text.strip() or message.attachments for message in messages if message.role == "user"):
        raise InvalidRequest("the prompt is empty", hint="give the task some text")
    check_attachments(messages)
    return messages


def _messages(prompt: object) -> tuple[Message, ...]:
    if isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, Sequence):
        raise InvalidRequest(f"a prompt is a string or a list of messages, not {type(prompt).__name__}", hint=_HINT)
    messages: list[Message] = []
    called: dict[str, str] = {}  # names of the tools that were called so far, by the ids of the calls
    for place, given in enumerate(prompt):
        if isinstance(given, Message):
            messages.append(given)
        elif (mapping := _as_mapping(given)) is not None:
            messages.append(_message(mapping, f"messages[{place}]", called))
        else:
            raise InvalidRequest(f"messages[{place}] is no message but {type(given).__name__}", hint=_HINT)
        called.update((call.id, call.name) for call in messages[-1].tool_calls)
    return tuple(messages)


def _as_mapping(given: object) -> Mapping[Any, Any] | None:
    """Return a message in OpenAI's form; None for what is no message."""
    if isinstance(given, Mapping):
        return given
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, str) for part in given):
        return {"role": given[0], "content": given[1]}
    kind = getattr(given, "type", None)
    if not isinstance(kind, str) or not hasattr(given, "content"):
        return None
    return _of_langchain(given, kind.removesuffix("MessageChunk").lower())


def _of_langchain(given: Any, kind: str) -> dict[str, object]:  # noqa: ANN401 - a class of LangChain's
    """Return a message of LangChain in OpenAI's form."""
    content = given.content
    if kind == "tool":
        call = {"tool_call_id": getattr(given, "tool_call_id", None), "name": getattr(given, "name", None)}
        return {"role": "tool", "content": content, "is_error": getattr(given, "status", "success") == "error", **call}
    if kind != "ai":
        return {"role": getattr(given, "role", kind), "content": content}
    if isinstance(content, list):
        content = [part for part in content if not (isinstance(part, Mapping) and part.get("type") in _NOT_SAID)]
    calls = getattr(given, "tool_calls", ())
    if isinstance(calls, list):
        calls = [_renamed(call) if isinstance(call, Mapping) else call for call in calls]
    kept = getattr(given, "additional_kwargs", None)
    state = kept.get(STATE) if isinstance(kept, Mapping) else None
    return {"role": "assistant", "content": content, "tool_calls": calls, **({} if state is None else {"state": state})}


def _renamed(call: Mapping[Any, Any]) -> dict[str, object]:
    return {"id": call.get("id"), "name": call.get("name"), "arguments": call.get("args")}


def _message(given: Mapping[Any, Any], where: str, called: Mapping[str, str]) -> Message:
    try:
        if "content" not in given and "tool_call_id" not in given and not _has_foreign_calls(given):
            return Message.model_validate(dict(given))  # our own form, as `Message.model_dump` writes it
        return Message.model_validate(_fields(given, where, called))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join([where, *map(str, problem["loc"])])
        raise InvalidRequest(f"{place}: {problem['msg'].removeprefix('Value error, ')}", hint=_HINT) from error


def _has_foreign_calls(given: Mapping[Any, Any]) -> bool:
    calls = given.get("tool_calls")
    return isinstance(calls, Sequence) and any(isinstance(call, Mapping) and "function" in call for call in calls)


def _fields(given: Mapping[Any, Any], where: str, called: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of a `Message` for one of OpenAI's form."""
    unknown = sorted(set(map(str, given)) - {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "is_error", "state"})
    if unknown:
        raise InvalidRequest(f"{where}: unknown key {unknown[0]!r}", hint=_HINT)
    role, (text, attachments) = given.get("role"), read_content(given.get("content"), f"{where}.content")
    if role == "tool":
        call = given.get("tool_call_id")
        name = given.get("name") or (called.get(call) if isinstance(call, str) else None)
        if not isinstance(call, str) or name is None:
            raise InvalidRequest(f"{where}.tool_call_id names no call of an earlier message", hint="the id of one of its tool_calls")
        is_error = given.get("is_error", False)
        result = ToolResult(call_id=call, name=name, content=text, is_error=is_error)
        return {"role": role, "tool_result": result, "attachments": attachments}
    calls = given.get("tool_calls") or ()
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise InvalidRequest(f"{where}.tool_calls must be a list, not {type(calls).__name__}", hint=_HINT)
    tool_calls = tuple(_call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(calls))
    said = {"text": text, "tool_calls": tool_calls, "attachments": attachments}
    return {"role": _ROLES.get(str(role), role), **said, "state": given.get("state")}


def _call(given: object, where: str) -> ToolCall:
    """Return a call of OpenAI's form, whose arguments are a text, or of our own."""
    if isinstance(given, ToolCall):
        return given
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{where} is no tool call but {type(given).__name__}", hint=_HINT)
    function = given.get("function")
    if not isinstance(function, Mapping):
        return ToolCall.model_validate(dict(given))
    arguments = function.get("arguments", "{}")
    try:
        parsed = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError as error:
        raise InvalidRequest(f"{where}.function.arguments is no JSON: {error}", hint='a text such as {"path": "a.txt"}') from error
    return ToolCall.model_validate({"id": given.get("id"), "name": function.get("name"), "arguments": parsed})


def tokens_by_length(text: str) -> int:
    """Return an estimate of a text's tokens, from its length."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def tokens_of(task: "Task") -> int:
    """Return an estimate of the tokens that an agent reads of a task at first."""
    tokens = tokens_by_length(task.context or "")
    for message in task.messages:
        tokens += tokens_by_length(message.text) + sum(attachment.most_tokens for attachment in message.attachments)
    return tokens


def last_words(messages: Sequence[Message]) -> str:
    """Return the user's last message of a conversation; an empty text if there is none."""
    for message in reversed(messages):
        if message.role == "user":
            return message.text
    return ""


@dataclass(frozen=True, slots=True)
class TaskScope:
    """Properties of the task for which agents are asked."""

    user: str = ""
    """An answer for one user is never served to another one."""
    policy: str = ""
    """Fingerprint of the policy: an answer made under one is not served under another."""
    task_class: str = ""
    """Class of the task as the app gave it; empty: unknown."""
    caching: Caching = "use"
    task: str = ""
    """The task's id. It decides nothing, but finds the answers of a task that the app reports as wrong."""


_CURRENT: Final[ContextVar[TaskScope]] = ContextVar("nearfar_cache_scope", default=TaskScope())  # noqa: B039 - it is frozen


def scope_of(task: "Task") -> TaskScope:
    """Return the scope of a task."""
    policy = fingerprint(task.policy.model_dump(mode="json"))
    return TaskScope(user=task.user, policy=policy, task_class=task.task_class, caching=task.cache, task=task.idempotency_key)


def current_scope() -> TaskScope:
    """Return the scope of the running task; outside of one, the default scope."""
    return _CURRENT.get()


@contextmanager
def within_scope(of: TaskScope) -> Iterator[None]:
    """Set the scope of steps within the block."""
    token = _CURRENT.set(of)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def transcript(messages: Sequence[Message]) -> str:
    """Return the executor's work as text: a line for each call and each result, and its words as they stand."""
    return "\n".join(line for message in messages for line in _lines(message))


def task_text(task: Task) -> str:
    """Return the task as text for another agent: the prompt or, for a longer conversation, a transcript with roles."""
    if len(task.messages) == 1:
        return task.messages[0].text
    said = ((message.role, transcript([message])) for message in task.messages)
    return "\n".join(f"{role}: {text}" for role, text in said if text)


def call_text(call: ToolCall) -> str:
    """Return a call as a line: `open(title="Mira Falk")`."""
    arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return f"{call.name}({arguments})"


def _lines(message: Message) -> list[str]:
    if message.tool_result is not None:
        return [f"= {message.tool_result.content}"]
    words = [message.text] if message.text.strip() else []
    return [*words, *(call_text(call) for call in message.tool_calls)]
