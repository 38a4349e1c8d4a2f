"""What a task asks for, and how far the user lets it go."""

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
    """How tasks are served unless they say otherwise: the `[policy]` section of nearfar.toml."""

    strategy: Strategy = Strategy.CASCADE
    mode: Mode = Mode.AUTO
    sensitivity: Sensitivity = Sensitivity.PRIVATE
    """Of tasks that do not state their own."""
    minimum_confidence: float = Field(default=0.7, ge=0, le=1)
    """A cascade distrusts a draft whose confidence is below; a near agent below it changes nothing while the far side may be asked."""
    attempt_timeout: float = Field(default=60, gt=0)
    """Seconds an agent gets before the next candidate takes over; the last candidate is not bound by it. Under supervision it bounds
    each step instead, the supervisor's too."""
    maximum_turns: int = Field(default=16, gt=0)
    """Steps of one agent on one task."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Of each step; 0 takes the likeliest token every time. None: 0 near, and the provider's own default far."""
    effort: Effort | None = None
    """How long models think in each step; None: as the agent's configuration says, else the model's own default."""
    maximum_output_tokens: int | None = Field(default=None, gt=0)
    """Of each step; None: as many as the agent allows."""
    rules: tuple[Rule, ...] = ()
    """What certain tasks, devices and hours ask for, in their order."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """What the router weighs against each other."""
    limits: LimitsConfig = LimitsConfig()
    """What may be spent."""
    fallback: FallbackConfig = FallbackConfig()
    """Who takes over from an agent that failed."""
    breakers: BreakerConfig = BreakerConfig()
    """When an agent that fails is left alone."""
    hedge: HedgeConfig = HedgeConfig()
    """Whether a second agent is asked where the first one takes unusually long."""
    stickiness: StickinessConfig = StickinessConfig()
    """What keeps a session with one agent."""
    privacy: PrivacyConfig = PrivacyConfig()
    """What becomes of private data on the way to a far agent."""
    guard: GuardConfig = GuardConfig()
    """What a model may do once the run has read what strangers wrote."""
    evidence: EvidenceConfig = EvidenceConfig()
    """What a cascade looks at before it accepts a draft."""
    router: RouterConfig = RouterConfig()
    """How the router predicts, learns and holds its budget."""
    supervision: SupervisionConfig = SupervisionConfig()
    """Of pevr and eva."""
    minions: MinionsConfig = MinionsConfig()
    """How the strategy `minions` reads a long context."""
    subtasks: SubtasksConfig = SubtasksConfig()
    """How the strategy `subtasks` cuts a task."""
    compression: CompressionConfig = CompressionConfig()
    """How conversations are made to fit that are too long for an agent."""
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
    """Another user, who shared it; empty: it is the task's own user's, or the app's."""


class Task(Value):
    """One task with everything that decides how it is served."""

    messages: tuple[Message, ...]
    context: str | None = None
    """A long text that the task is about, apart from its messages: of `minions`, which keeps it on this device, and of `subtasks`."""
    memory: str | None = None
    """What was recalled for it, as quoted data that stands behind its last prompt, and behind that of each of its parts."""
    recalled: tuple[RecalledItem, ...] = Field(default=(), exclude=True)
    """The items that it quotes; not part of the graph's state."""
    output_schema: JsonSchema | None = None
    timeout: float | None = Field(default=None, gt=0)
    """Seconds for the whole task, over all attempts."""
    idempotency_key: str = Field(default_factory=lambda: uuid4().hex, min_length=1, max_length=100)
    """Names the task: its steps' keys derive from it, so a repeated task is not paid twice within the gateway's window."""
    policy: Policy = Policy()
    stated: frozenset[str] = frozenset()
    """Keys of the policy that were said with the task, such as `mode`: rules that merely prefer something yield to them."""
    task_class: str = Field(default="", max_length=200, pattern=r"^[^/]*(/[^/]+){0,9}$")
    """What the task is, from coarse to fine, as the app knows it: `billing/refund`. Empty: unknown."""
    tags: tuple[str, ...] = ()
    """Words of the app's own that rules can ask for."""
    language: str | None = None
    """ISO 639-1 code of the prompt's language; None: looked for where a rule asks for it."""
    session: str | None = Field(default=None, min_length=1)
    """Names the conversation that the task belongs to: a follow-up goes to the agent that answered last."""
    user: str = Field(default="", max_length=200)
    """On whose behalf the task is served, where an app serves several people."""
    cache: Caching = "use"
    """Whether it may be answered from a cache and its answers be stored."""
    unstick: bool = False
    """Choose anew, whoever answered last in the session."""
    allowed_tools: frozenset[str] | None = None
    """The only tools that it may call, which are then not asked about for their own sake; None: all, as far as the guard lets it."""
    planned: Chosen = Chosen()
    """What was chosen for it before the run had read what strangers wrote: by the user's plan, and for a part of a task by its whole."""
    prompt: str | None = None
    """The last prompt as the user wrote it, where something stands behind it; None: it is that."""
    label: Label = Label()
    """Of what went into it and cannot be told by looking at it: its session, the memory, a context, the results of other parts."""
    reasons: tuple[str, ...] = ()
    """How its strategy was chosen, where that was not the user's choice; the first of `Result.reasons`."""
    selection: SelectionDecision | None = Field(default=None, exclude=True)
    """The choice that `auto` made; not part of the graph's state."""

    def needs(self, *, has_tools: bool) -> Needs:
        """What its candidates have to be capable of. Those of `minions` and `subtasks` plan and sum up, and call no tools."""
        if self.policy.strategy in (Strategy.MINIONS, Strategy.SUBTASKS):
            return Needs()
        return Needs(tools=has_tools, json_schema=self.output_schema is not None)

    @property
    def said(self) -> tuple[str, ...]:
        """What the user and the app have said, in their own words."""
        said = [message for message in self.messages if message.role in ("user", "system")]
        last = max(index for index, message in enumerate(said) if message.role == "user")
        return tuple(self.prompt if index == last and self.prompt is not None else message.text for index, message in enumerate(said))

    def with_plan(self, plan: str) -> "Task":
        """The task with the user's own plan, which stands behind the last prompt and is a part of it."""
        place = max(index for index, message in enumerate(self.messages) if message.role == "user")
        prompt = Message.user(f"{self.messages[place].text}\n\nPlan:\n{plan}")
        messages = (*self.messages[:place], prompt, *self.messages[place + 1 :])
        return self.model_copy(update={"messages": messages, "planned": Chosen(plan=plan)})

    def with_context_in_prompt(self) -> "Task":
        """The task with its context behind its last prompt, as strategies see it that do not keep it apart."""
        if self.context is None:
            return self
        return self._extended(self.context).model_copy(update={"context": None, "label": self.label.joined(OF_CONTEXT)})

    def with_memory_in_prompt(self) -> "Task":
        """The task with what was recalled for it behind its last prompt."""
        return self if self.memory is None else self._extended(self.memory)

    def _extended(self, text: str) -> "Task":
        place = max(index for index, message in enumerate(self.messages) if message.role == "user")
        prompt = Message.user(f"{self.messages[place].text}\n\n{text}")
        own = self.messages[place].text if self.prompt is None else self.prompt
        return self.model_copy(update={"messages": (*self.messages[:place], prompt, *self.messages[place + 1 :]), "prompt": own})
