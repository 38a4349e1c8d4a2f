"""Tasks, and the policy by which they are served."""

from uuid import uuid4

from pydantic import Field

from ...protocols import Effort, JsonSchema, Message, Sensitivity
from ...protocols.messages import Value
from ...protocols.namespaces import Namespace
from ...protocols.tiers import Source, Tier
from .auto_decision import SelectionDecision
from .chosen import Chosen
from .labels import OF_CONTEXT, Label
from .modes import Mode, Needs, Strategy
from .scope import Caching
from .sections.auto import AutoConfig
from .sections.compression import CompressionConfig
from .sections.guard import GuardConfig
from .sections.minions import MinionsConfig
from .sections.privacy import PrivacyConfig
from .sections.resilience import BreakerConfig, HedgeConfig
from .sections.routing import EvidenceConfig, FallbackConfig, LimitsConfig, ObjectiveConfig, RouterConfig, StickinessConfig
from .sections.rules import Rule
from .sections.subtasks import SubtasksConfig
from .sections.supervision import SupervisionConfig


class Policy(Value):
    """How tasks are served by default: the `[policy]` section of nearfar.toml."""

    strategy: Strategy = Strategy.CASCADE
    mode: Mode = Mode.AUTO
    sensitivity: Sensitivity = Sensitivity.PRIVATE
    """Sensitivity of tasks that state none."""
    minimum_confidence: float = Field(default=0.7, ge=0, le=1)
    """Confidence, 0 to 1, below which a cascade rejects a draft, and a near agent changes nothing if the far side may be asked."""
    attempt_timeout: float = Field(default=60, gt=0)
    """Seconds for an agent before the next candidate takes over; the last candidate has no such limit. Under supervision it limits each
    step,
    including the supervisor's.
    """
    maximum_turns: int = Field(default=16, gt=0)
    """Most steps of one agent on one task."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature of each step, 0 to 2; 0 always takes the likeliest token. None: 0 for near agents, the provider's default for
    far ones."""
    effort: Effort | None = None
    """How long models think in each step; None: the agent's configuration decides, else the model's own default."""
    maximum_output_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of each step's output; None: the agent's own limit."""
    rules: tuple[Rule, ...] = ()
    """Rules for certain tasks, devices and hours, in order of priority."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """Weights of quality, cost, time and energy for the router."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of spending per call, task, session, user and day."""
    fallback: FallbackConfig = FallbackConfig()
    """Agents that take over from one that failed, and when."""
    breakers: BreakerConfig = BreakerConfig()
    """Circuit breakers for agents that fail."""
    hedge: HedgeConfig = HedgeConfig()
    """Hedging: a second agent for an unusually slow first step."""
    stickiness: StickinessConfig = StickinessConfig()
    """How long a session stays with one agent."""
    privacy: PrivacyConfig = PrivacyConfig()
    """Treatment of private data on the way to far agents."""
    guard: GuardConfig = GuardConfig()
    """Approval of tool calls after a run has read untrusted content."""
    evidence: EvidenceConfig = EvidenceConfig()
    """Checks of a draft before a cascade accepts it."""
    router: RouterConfig = RouterConfig()
    """The router's predictions, learning and budget."""
    supervision: SupervisionConfig = SupervisionConfig()
    """Supervision in the strategies `pevr` and `eva`."""
    minions: MinionsConfig = MinionsConfig()
    """How the strategy `minions` reads a long context."""
    subtasks: SubtasksConfig = SubtasksConfig()
    """How the strategy `subtasks` divides a task."""
    compression: CompressionConfig = CompressionConfig()
    """Compression of conversations that are too long for an agent."""
    auto: AutoConfig = AutoConfig()
    """How the strategy `auto` chooses another one."""


class RecalledItem(Value):
    """An item of the memory that was put before a task."""

    namespace: Namespace
    key: str
    version: str
    tier: Tier
    source: Source
    trust: float
    user: str = ""
    """The other user who shared it; empty: it belongs to the task's own user, or to the app."""


class Task(Value):
    """One task with everything that decides how it is served."""

    messages: tuple[Message, ...]
    context: str | None = None
    """A long text that the task is about, separate from its messages: for `minions`, which keeps it on this device, and for `subtasks`."""
    memory: str | None = None
    """Items recalled for it, as quoted data behind its last prompt, and behind that of each of its parts."""
    recalled: tuple[RecalledItem, ...] = Field(default=(), exclude=True)
    """The items that `memory` quotes; not part of the graph's state."""
    output_schema: JsonSchema | None = None
    timeout: float | None = Field(default=None, gt=0)
    """Seconds for the whole task, over all attempts."""
    idempotency_key: str = Field(default_factory=lambda: uuid4().hex, min_length=1, max_length=100)
    """Names the task: its steps' keys derive from it, so a repeated task is not paid twice within the gateway's window."""
    policy: Policy = Policy()
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
    user: str = Field(default="", max_length=200)
    """The user for whom the task is served, if an app serves several people."""
    cache: Caching = "use"
    """Let it be answered from a cache and its answers be stored (`use`), or neither (`no-store`)."""
    unstick: bool = False
    """Choose an agent without regard to the one that answered last in the session."""
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
        """Return the capabilities that its agents need. Those of `minions` and `subtasks` plan and sum up, and call no tools."""
        if self.policy.strategy in (Strategy.MINIONS, Strategy.SUBTASKS):
            return Needs()
        return Needs(tools=has_tools, json_schema=self.output_schema is not None)

    @property
    def said(self) -> tuple[str, ...]:
        """Return the words of the user and the app."""
        said = [message for message in self.messages if message.role in ("user", "system")]
        last = max(index for index, message in enumerate(said) if message.role == "user")
        return tuple(self.prompt if index == last and self.prompt is not None else message.text for index, message in enumerate(said))

    def with_plan(self, plan: str) -> "Task":
        """Return the task with the user's own plan added to the last prompt."""
        place = max(index for index, message in enumerate(self.messages) if message.role == "user")
        prompt = Message.user(f"{self.messages[place].text}\n\nPlan:\n{plan}")
        messages = (*self.messages[:place], prompt, *self.messages[place + 1 :])
        return self.model_copy(update={"messages": messages, "planned": Chosen(plan=plan)})

    def with_context_in_prompt(self) -> "Task":
        """Return the task with its context behind its last prompt, for strategies that do not keep it separate."""
        if self.context is None:
            return self
        return self._extended(self.context).model_copy(update={"context": None, "label": self.label.joined(OF_CONTEXT)})

    def with_memory_in_prompt(self) -> "Task":
        """Return the task with the recalled items behind its last prompt."""
        return self if self.memory is None else self._extended(self.memory)

    def _extended(self, text: str) -> "Task":
        place = max(index for index, message in enumerate(self.messages) if message.role == "user")
        prompt = Message.user(f"{self.messages[place].text}\n\n{text}")
        own = self.messages[place].text if self.prompt is None else self.prompt
        return self.model_copy(update={"messages": (*self.messages[:place], prompt, *self.messages[place + 1 :]), "prompt": own})
