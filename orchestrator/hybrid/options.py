"""The options of a single task, and the `Task` made of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError

from ...protocols import InvalidRequest, JsonSchema, Sensitivity, Side
from ...protocols.validation import check_schema
from ..routing.check import require_usable
from ..task.approvals import Approver
from ..task.conversation import conversation
from ..task.modes import Mode, Strategy
from ..task.scope import Caching
from ..task.task import Policy, Task
from ..task.tools import Tool
from .arguments import check_approver, policy_argument


class TaskOptions(TypedDict, total=False):
    """Options of a single task; they override those of the `Hybrid`."""

    policy: Policy | Mapping[str, Any]
    """Stands in for the `Hybrid`'s; the options below stand above it."""
    tools: Sequence[Tool]
    """Tools that the agents may call for this task, in addition to the `Hybrid`'s own."""
    approver: Approver | None
    """Stands in for the `Hybrid`'s."""
    allowed_tools: Iterable[str]
    """Names of the only tools that the task may call. Untrusted content in the conversation is then no reason to ask for approval of
    these, unless their arguments come from it."""

    plan: str
    """How the task is to be done, in the user's or the app's own words; agents see it behind the prompt. Calls in it, written as in
    `pay(account=account_of(contact="Ann").number, amount=500)`, are chosen before anything is read: what they state or name as to be read
    may become those arguments, whatever else the run has read."""
    context: str
    """A long text that the task is about. Under `minions` it stays on this device, read there in chunks; under any other strategy it
    stands behind the prompt, and goes wherever the prompt goes."""

    task_class: str
    """The kind of task, from coarse to fine: `billing/refund`. Rules match it, and the router learns by it."""
    tags: Sequence[str]
    """Words of the app's own that rules can ask for."""
    language: str
    """ISO 639-1 code of the prompt's language; looked for unless given, where a rule asks for it."""
    session: str
    """Names the conversation that the task belongs to: a follow-up goes to the agent that answered last."""
    unstick: bool
    """Choose the agent again, regardless of which one answered last in the session."""
    user: str
    """On whose behalf the task is served, where an app serves several people: no cache serves one what another has asked."""
    cache: Caching
    """`no-store`: neither look for the answers of this task in a cache, nor keep them."""

    strategy: Strategy | str
    mode: Mode | str
    sensitivity: Sensitivity | str
    output_schema: JsonSchema | type[BaseModel] | None
    """The answer must be JSON valid against this schema; `Result.output` is the parsed value. A pydantic model stands for its schema, and
    its `model_validate(result.output)` makes an object of it."""
    timeout: float | None
    """Seconds for the whole task."""
    idempotency_key: str
    """Names the task; two different tasks must not share one."""
    thread_id: str
    """The LangGraph thread that a checkpointer keeps the task under; the idempotency key unless given."""


class ResumeOptions(TypedDict, total=False):
    """Things that a run needs to be resumed and that are no part of the `Hybrid`."""

    tools: Sequence[Tool]
    approver: Approver | None


_OF_TASK: Final = (
    "allowed_tools",
    "cache",
    "context",
    "idempotency_key",
    "language",
    "session",
    "tags",
    "task_class",
    "timeout",
    "unstick",
    "user",
)
"""Options that are part of the task itself."""


def asked_task(prompt: object, options: TaskOptions, policy: Policy) -> Task:
    """Return the task as the user put it, under a policy. Raises `InvalidRequest` for options that make no sense."""
    output_schema = _schema_of(options.get("output_schema"))
    keys = {name: value for name, value in options.items() if name in _OF_TASK}
    stated = frozenset(options) & {"mode", "strategy"}
    messages = conversation(prompt)
    try:
        task = Task.model_validate({"messages": messages, "output_schema": output_schema, "policy": policy, "stated": stated, **keys})
    except ValidationError as error:
        problems = [f"{item['loc'][0]}: {item['msg']}" for item in error.errors(include_url=False)]
        raise InvalidRequest(
            "; ".join(problems), hint="see TaskOptions: timeout in seconds, context and session texts, tags a list of them"
        ) from error
    plan = options.get("plan")
    if plan is not None:
        task = task.with_plan(_plan(plan))
    _check_characters(task)
    return task


def _plan(given: object) -> str:
    if not isinstance(given, str) or not given.strip():
        raise InvalidRequest("plan must be a text that says how the task is to be done", hint="leave it out where there is none")
    return given.strip()


def _check_characters(task: Task) -> None:
    """Refuse half of a character, which Python's strings can hold, as of input in another encoding, and no agent could be sent."""
    try:
        task.model_dump_json(include={"messages", "context", "output_schema", "tags"})
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        hint = "read it in the encoding that it was written in"
        raise InvalidRequest("the task is not text in UTF-8: it holds half of a surrogate pair", hint=hint) from error


def _schema_of(given: object) -> JsonSchema | None:
    """Return the JSON Schema that is given, or that of a pydantic model. Raises `InvalidRequest`."""
    if given is None:
        return None
    if isinstance(given, type) and issubclass(given, BaseModel):
        try:
            given = given.model_json_schema()
        except PydanticUserError as error:
            raise InvalidRequest(f"output_schema: the model has no JSON Schema: {error.message}", hint="give a JSON Schema") from error
    if not isinstance(given, dict):
        hint = "Model.model_json_schema() makes one of a pydantic model, and the class itself is taken, too"
        raise InvalidRequest(f"output_schema must be a JSON Schema or a pydantic model class, not {type(given).__name__}", hint=hint)
    check_schema(given, "output_schema")
    return given


def check_options(options: TaskOptions, *, has_checkpointer: bool) -> None:
    """Refuse unknown options, as a misspelt `sensitivity` or `timeout`. Raises `InvalidRequest`."""
    known = TaskOptions.__optional_keys__
    unknown = sorted(set(options) - known)
    if unknown:
        raise InvalidRequest(f"unknown option {unknown[0]!r}", hint=f"the options are {', '.join(sorted(known))}")
    for name, value in options.items():
        if isinstance(value, (bytes, bytearray)) or (isinstance(value, bool) and name != "unstick"):
            raise InvalidRequest(f"{name} cannot be {type(value).__name__}", hint="see TaskOptions for what it takes")
    check_approver(options.get("approver"), InvalidRequest)
    if "thread_id" in options and not has_checkpointer:
        raise InvalidRequest("a thread_id needs a checkpointer to keep the thread", hint="Hybrid(checkpointer=...)")


def policy_of(options: TaskOptions, usual: Policy, agents: Mapping[str, Side]) -> Policy:
    """Return the policy for a task with these options. Raises `InvalidRequest` for unknown values, `ConfigError` for unknown agents."""
    changes = {name: options[name] for name in ("strategy", "mode", "sensitivity") if name in options}
    policy = policy_argument(options["policy"]) if "policy" in options else usual
    if not isinstance(policy, Policy) or options.get("policy", usual) is None:
        raise InvalidRequest("policy must be a Policy or a mapping", hint="from nearfar import Policy")
    if policy is not usual:
        require_usable(policy, agents)
    try:
        given = Policy.model_validate(changes)
    except ValidationError as error:
        allowed = f"strategy: {', '.join(Strategy)}; mode: {', '.join(Mode)}; sensitivity: {', '.join(Sensitivity)}"
        raise InvalidRequest(f"unknown value among {changes}", hint=allowed) from error
    return policy.model_copy(update={name: getattr(given, name) for name in changes})
