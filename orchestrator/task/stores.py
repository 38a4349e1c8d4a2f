"""The sections of nearfar.toml for what is stored: the memory, the cache of answers, and runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from ...protocols import DeviceState, InvalidRequest, PowerSource, Side, Thermal
from ...protocols.items import TIERS, Namespace, Tier, parse_namespace
from ...protocols.steps import Value
from ...protocols.system import cache_folder, data_folder

BUDGET_TOKENS: Final = 1200
"""Default length, in estimated tokens, of what is recalled for a question."""
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
PeerName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
LONGEST_LIFE: Final = 1000 * 366 * 86_400.0
"""Most seconds of a time to live: items written now expire before the last date that there is."""
LEAST_THRESHOLD: Final = 0.85
"""Lowest threshold that is learned. Questions that the guards pass lie above it, so a lower one only adds wrong answers."""
DAY: Final = 86_400.0

_Section = TypeVar("_Section", bound=Value)


class ConsolidationConfig(Value):
    """When and how the memory is consolidated: the `[memory.sleep]` section of nearfar.toml."""

    minimum_battery: float = Field(default=0.8, ge=0, le=1)
    """Least battery charge, 0 to 1, of a device that consolidates without being charged."""
    idle_seconds: float = Field(default=300, ge=0, allow_inf_nan=False)
    """Seconds without a task after which a `Hybrid` begins, and between two tries if the device is not ready."""
    settled_seconds: float = Field(default=3600, ge=0, allow_inf_nan=False)
    """Seconds after the last turn of a session until it counts as finished; until then its last topic waits."""
    topic_tokens: int = Field(default=1200, gt=0)
    """Most tokens, by estimate, of the turns that are summed up together."""
    topic_similarity: float = Field(default=0.4, ge=-1, le=1)
    """Cosine similarity of neighbouring segments below which the topic has changed."""
    summary_tokens: int = Field(default=160, gt=0)
    """Most tokens of a summary."""
    keywords: int = Field(default=12, gt=0)
    """Most keywords of a topic."""
    related: float = Field(default=0.8, ge=-1, le=1)
    """Cosine similarity from which a newer fact is compared with an older one (as in LightMem, arXiv 2510.18866)."""
    most_related: int = Field(default=5, gt=0)
    """Most newer facts that one fact is compared with."""
    same: float = Field(default=0.92, ge=-1, le=1)
    """Cosine similarity from which a newer fact may repeat an older one, if it also has all of its words in the same order."""
    parallel: int = Field(default=4, gt=0)
    """Most questions to the model at a time, limited by the model's own parallelism."""


def reason_to_wait(state: DeviceState, policy: ConsolidationConfig) -> str | None:
    """Return why the device should not consolidate its memory now, or None. A device of unknown power source does not count as charged."""
    if state.thermal in (Thermal.SERIOUS, Thermal.CRITICAL):
        return f"the device is hot ({state.thermal})"
    if state.power_source is PowerSource.MAINS:
        return None
    if state.battery is None:
        return "it is not known whether the device is being charged"
    if state.battery < policy.minimum_battery:
        return f"the battery is at {state.battery:.0%} and not being charged"
    return None


def _namespace(text: str) -> str:
    try:
        parse_namespace(text)
    except InvalidRequest as error:
        raise ValueError(error.message) from error
    return text


NamespaceText = Annotated[str, Field(min_length=1), AfterValidator(_namespace)]


class RecallConfig(Value):
    """Items of the memory put before each task as quoted data: the `[memory.recall]` section."""

    tokens: int = Field(default=BUDGET_TOKENS, gt=0)
    """Most tokens, by estimate, that are recalled for a task."""
    namespaces: tuple[NamespaceText, ...] = ()
    """Namespaces, written as `label/label`, to recall from, with those below them; none: all namespaces."""
    minimum_trust: float = Field(default=0.0, ge=0, le=1)
    """Least trust, 0 to 1, of an item that is recalled."""
    minimum_similarity: float = Field(default=0.3, ge=-1, le=1)
    """Least cosine similarity with the prompt of an item that is recalled."""
    may_leave: Literal["user", "shared"] = "shared"
    """Strictest tier that a public task may take to the cloud; a task that recalls a stricter item becomes private."""

    @property
    def prefixes(self) -> tuple[Namespace, ...]:
        """Return the namespaces to recall from."""
        return tuple(map(parse_namespace, self.namespaces)) or ((),)

    def may_go(self, tier: Tier) -> bool:
        """Return whether an item of this `tier` may be shown to a far agent."""
        return TIERS.index(tier) >= TIERS.index(Tier(self.may_leave))


class PeerConfig(Value):
    """Another device or a hub to sync with by `nearfar memory sync NAME`: a `[memory.peers.NAME]` section."""

    address: str = Field(min_length=1)
    """Address of the peer: `host:port` or `unix:/path`."""
    token_variable: VariableName = "NEARFAR_TOKEN"
    """Name of the variable, in the environment or the keyring, with the token by which the peer knows this device."""
    certificate: Path | None = None
    """PEM file of the peer's certificate, or of its authority; None: the system's authorities."""
    fingerprint: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    """SHA-256 fingerprint of the peer's certificate, as the pairing shows it, instead of a file."""
    client_certificate: Path | None = None
    """PEM file of this device's own certificate, if the peer demands one."""
    client_key: Path | None = None
    """PEM file of the certificate's private key."""

    @model_validator(mode="after")
    def _trusts_one_certificate(self) -> Self:
        if self.certificate is not None and self.fingerprint is not None:
            raise ValueError("certificate and fingerprint both say whom to trust: give one of them")
        return self


class MemoryConfig(Value):
    """The agents' memory: the `[memory]` section. Secrets stand in the environment or the keyring; the file names their variables."""

    path: Path | None = None
    """Path of the SQLite file; None: `memory/memory.db` in nearfar's data folder."""
    postgres_variable: VariableName | None = None
    """Name of the variable with `postgres://...`, the database to use instead of a file."""
    key_variable: VariableName | None = None
    """Name of the variable with the key that encrypts the file; None: the file is not encrypted."""
    user: str = Field(default="", max_length=200)
    """User whose memory it is, by the hub's name; empty: a user without other devices."""
    tier: Tier = Tier.DEVICE
    """Privacy tier of items that are written without one: `device`, `user` or `shared`."""
    embed: bool = True
    """Search by meaning too, with the embedder that ships with nearfar; false: by words alone."""
    ttl: float | None = Field(default=None, gt=0, le=LONGEST_LIFE)
    """Seconds after which an item that was neither written nor read is forgotten; None: never."""
    recall: RecallConfig | None = None
    """Items that are put before each task; None: none."""
    remember: bool = False
    """Record each task and its outcome in the memory."""
    tools: bool = False
    """Let agents call the tools `remember` and `recall`."""
    sleep: ConsolidationConfig | None = None
    """Consolidation in the background while no task is served; None: only by `nearfar memory sleep`."""
    peers: Mapping[PeerName, PeerConfig] = {}
    """Devices and hubs to sync with, by the names that `nearfar memory sync` takes."""

    @model_validator(mode="after")
    def _is_one_database(self) -> Self:
        if self.postgres_variable is not None and (self.path is not None or self.key_variable is not None):
            raise ValueError("postgres_variable stands in place of path and key_variable: give one or the other")
        return self

    def anchored(self, folder: Path) -> "MemoryConfig":
        """Return the section with its relative paths made absolute, starting at `folder`."""
        files = ("certificate", "client_certificate", "client_key")
        peers = {name: _anchored(peer, folder, *files) for name, peer in self.peers.items()}
        return _anchored(self, folder, "path").model_copy(update={"peers": peers})


def _anchored(section: _Section, folder: Path, *names: str) -> _Section:
    """Return a section with these of its paths made absolute."""
    files = {name: getattr(section, name) for name in names}
    return section.model_copy(update={name: folder / file.expanduser() for name, file in files.items() if file is not None})


@dataclass(frozen=True, slots=True)
class CategoryRules:
    """Complete rules for the questions of one category."""

    cacheable: bool
    """Answers are stored."""
    semantic: bool
    """An answer may be served to a question in other words."""
    threshold: float
    """Cosine similarity from which it may."""
    time_to_live: float
    """Seconds after which an answer is removed."""
    entries: int
    """Most answers of the category."""


class CategoryConfig(Value):
    """Cache rules for the questions of one category: a `[cache.categories.NAME]` section. None: as for the whole cache."""

    cacheable: bool = True
    """False: answers of the category are not stored."""
    semantic: bool | None = None
    """False: only a question in the same words is served; None: as for the whole cache."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    """Cosine similarity from which another wording may be served; None: as for the whole cache."""
    time_to_live: float | None = Field(default=None, gt=0)
    """Seconds after which an answer is removed; None: as for the whole cache."""
    entries: int | None = Field(default=None, gt=0)
    """Most answers of the category; None: as for the whole cache."""


class CacheConfig(Value):
    """The cache of answers: the `[cache]` section, whose presence turns it on."""

    path: Path | None = None
    """Path of the cache's file; None: `answers.db` in the user's cache folder."""
    sides: tuple[Side, ...] = (Side.FAR,)
    """Sides whose agents are cached; by default the far one, since a near agent costs no dollars."""
    semantic: bool = True
    """Serve a question that was asked in other words, unless a guard objects; false: only the same words."""
    threshold: float = Field(default=0.9, ge=0, le=1)
    """Cosine similarity from which another wording may be served, until a category has judged enough pairs of its own."""
    time_to_live: float = Field(default=7 * DAY, gt=0)
    """Seconds after which an answer is removed."""
    entries: int = Field(default=10_000, gt=0)
    """Most answers kept per category; beyond, the least recently used go first."""
    false_hit_budget: float = Field(default=0.02, gt=0, lt=1)
    """Share of hits in other words that may be wrong, 0 to 1; thresholds are learned to stay below it at a confidence of 95 %."""
    relaxed_budget: float | None = Field(default=None, gt=0, lt=1)
    """Share of hits in other words that may be wrong while the agent is overloaded; None: load changes nothing."""
    shadow_share: float = Field(default=0.02, ge=0, le=1)
    """Share of hits in other words, 0 to 1, that are answered again by the agent, to compare both answers."""
    verifier: str | None = None
    """Name of a near agent that checks each answer before it is served for other words; None: no agent checks."""
    minimum_confidence: float = Field(default=0.7, ge=0, le=1)
    """Answers with a known confidence below this, 0 to 1, are not stored."""
    plans: bool = False
    """Let `pevr` and `subtasks` start from the plan of an earlier task of the same intent."""
    categories: Mapping[str, CategoryConfig] = {}
    """Rules by category: a task class (`billing`, `billing/refund`), or `general`, `code`, `creative`, `current`, `other_language`."""

    @model_validator(mode="after")
    def _relaxing_does_not_tighten(self) -> "CacheConfig":
        if self.relaxed_budget is not None and self.relaxed_budget < self.false_hit_budget:
            raise ValueError("relaxed_budget is below false_hit_budget")
        return self

    def of_category(self, name: str) -> CategoryRules:
        """Return the rules of the category called `name`. Those of `current`, `creative` and `code` are strict unless they are set."""
        own = self.categories.get(name, _BUILT_IN.get(name, CategoryConfig()))
        return CategoryRules(
            cacheable=own.cacheable,
            semantic=self.semantic and own.semantic is not False,
            threshold=self.threshold if own.threshold is None else own.threshold,
            time_to_live=self.time_to_live if own.time_to_live is None else own.time_to_live,
            entries=self.entries if own.entries is None else own.entries,
        )

    @property
    def low_thresholds(self) -> Mapping[str, float]:
        """Return the thresholds below the lowest that is ever learned, by their keys."""
        named = {"threshold": self.threshold, **{f"categories.{name}.threshold": own.threshold for name, own in self.categories.items()}}
        return {key: value for key, value in named.items() if value is not None and value < LEAST_THRESHOLD}

    def anchored(self, folder: Path) -> "CacheConfig":
        """Return the section with a relative path made absolute, starting at `folder`."""
        return _anchored(self, folder, "path")

    @property
    def file(self) -> Path:
        """Return the path of the cache's file."""
        return self.path or cache_folder() / "answers.db"


_BUILT_IN: Final[Mapping[str, CategoryConfig]] = {
    "current": CategoryConfig(cacheable=False),  # what is asked for changes by the hour
    "creative": CategoryConfig(semantic=False),  # a user who asks in other words wants another poem
    "code": CategoryConfig(semantic=False),  # one character makes another program
}


def calls_folder() -> Path:
    """Return the folder in which near agents keep tool calls, to draft later ones from."""
    return data_folder() / "calls"


class RunsConfig(Value):
    """The store of runs: the `[runs]` section. With it every task is a durable run, which another process can resume."""

    folder: Path = Field(default_factory=lambda: data_folder() / "runs")
    """Folder of the runs, accessible to its owner only; by default in the user's data folder."""
    postgres_variable: VariableName | None = None
    """Name of the variable, in the environment or the keyring, with `postgres://...`: a database that several orchestrators share."""
    keep: int = Field(default=10_000, ge=0)
    """Most ended runs that are kept; the oldest are forgotten first."""
    keep_days: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Days after which an ended run is forgotten; None: only `keep` counts."""

    def anchored(self, folder: Path) -> "RunsConfig":
        """Return the section with a relative path made absolute."""
        return _anchored(self, folder, "folder")
