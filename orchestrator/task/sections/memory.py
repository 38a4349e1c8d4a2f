"""The `[memory]` section of nearfar.toml: the store, its user, recall for tasks, and sync with other devices."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ....protocols import InvalidRequest
from ....protocols.messages import Value
from ....protocols.namespaces import Namespace, parse_namespace
from ....protocols.tiers import TIERS, Tier
from .consolidation import ConsolidationConfig

BUDGET_TOKENS: Final = 1200
"""Default length, in estimated tokens, of what is recalled for a question."""

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
PeerName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]

LONGEST_LIFE: Final = 1000 * 366 * 86_400.0
"""Most seconds of a time to live: items written now expire before the last date that there is."""


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
        """Return whether an item of this tier may be shown to a far agent."""
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

    @model_validator(mode="after")
    def _is_one_database(self) -> Self:
        if self.postgres_variable is not None and (self.path is not None or self.key_variable is not None):
            raise ValueError("postgres_variable stands in place of path and key_variable: give one or the other")
        return self

    def anchored(self, folder: Path) -> "MemoryConfig":
        """Return the section with its relative paths made absolute."""
        peers = {name: _anchored(peer, folder) for name, peer in self.peers.items()}
        path = None if self.path is None else folder / self.path.expanduser()
        return self.model_copy(update={"path": path, "peers": peers})


def _anchored(peer: PeerConfig, folder: Path) -> PeerConfig:
    files = {name: getattr(peer, name) for name in ("certificate", "client_certificate", "client_key")}
    return peer.model_copy(update={name: folder / file.expanduser() for name, file in files.items() if file is not None})
