"""The `[memory]` section of nearfar.toml: where memory is kept, whose it is, what tasks recall of it, and with whom it is kept in step."""

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
"""The length of what is recalled for a question, by estimate, unless the app says otherwise."""

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
PeerName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]

LONGEST_LIFE: Final = 1000 * 366 * 86_400.0
"""Seconds of a time to live: whatever is written now, it ends before the last date that there is."""


def _namespace(text: str) -> str:
    try:
        parse_namespace(text)
    except InvalidRequest as error:
        raise ValueError(error.message) from error
    return text


NamespaceText = Annotated[str, Field(min_length=1), AfterValidator(_namespace)]


class RecallConfig(Value):
    """The `[memory.recall]` section: what of the memory is put before each task, as quoted data."""

    tokens: int = Field(default=BUDGET_TOKENS, gt=0)
    """What is recalled for a task is no longer than this, by estimate."""
    namespaces: tuple[NamespaceText, ...] = ()
    """Only what is in or below one of these, written as `label/label`, is recalled; none: everything."""
    minimum_trust: float = Field(default=0.0, ge=0, le=1)
    """Items that are believed less are not recalled."""
    minimum_similarity: float = Field(default=0.3, ge=-1, le=1)
    """Cosine similarity with the prompt below which an item has nothing to do with it."""
    may_leave: Literal["user", "shared"] = "shared"
    """The strictest tier that a public task may take to the cloud. A task that recalls anything stricter is private from there on."""

    @property
    def prefixes(self) -> tuple[Namespace, ...]:
        """The namespaces in or below which is recalled."""
        return tuple(map(parse_namespace, self.namespaces)) or ((),)

    def may_go(self, tier: Tier) -> bool:
        """Whether an item of this tier may be part of what a far agent reads."""
        return TIERS.index(tier) >= TIERS.index(Tier(self.may_leave))


class PeerConfig(Value):
    """A `[memory.peers.NAME]` section: another device, or a hub, with which `nearfar memory sync NAME` brings this memory into step."""

    address: str = Field(min_length=1)
    """`host:port` or `unix:/path`."""
    token_variable: VariableName = "NEARFAR_TOKEN"
    """Holds the token by which the peer knows this device, in the environment or the keyring."""
    certificate: Path | None = None
    """PEM file of the peer's certificate, or of who signed it; None: the system's authorities."""
    fingerprint: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    """Of the peer's certificate, as the pairing has it, in place of a file."""
    client_certificate: Path | None = None
    """PEM file of this device's own certificate, where the peer demands one."""
    client_key: Path | None = None
    """PEM file of its private key."""

    @model_validator(mode="after")
    def _trusts_one_certificate(self) -> Self:
        if self.certificate is not None and self.fingerprint is not None:
            raise ValueError("certificate and fingerprint both say whom to trust: give one of them")
        return self


class MemoryConfig(Value):
    """The `[memory]` section. Secrets stand in the environment or the keyring; the file names their variables."""

    path: Path | None = None
    """The SQLite file; None: `memory/memory.db` where nearfar keeps its data."""
    postgres_variable: VariableName | None = None
    """Holds `postgres://...`, the database to use in place of a file."""
    key_variable: VariableName | None = None
    """Holds the key that the file is encrypted with; None: it is not encrypted."""
    user: str = Field(default="", max_length=200)
    """Whose memory it is, as the hub names them; empty: it belongs to nobody who has other devices."""
    tier: Tier = Tier.DEVICE
    """How far what is written may go, where nothing else is said with it: `device`, `user` or `shared`."""
    embed: bool = True
    """Search by meaning too, with the embedder that ships with nearfar; false: by words alone."""
    ttl: float | None = Field(default=None, gt=0, le=LONGEST_LIFE)
    """Seconds after which what was neither written nor read is forgotten; None: never."""
    recall: RecallConfig | None = None
    """None: tasks see nothing of the memory."""
    remember: bool = False
    """Write down what each task was about and what came of it."""
    tools: bool = False
    """Agents may call `remember` and `recall`."""
    sleep: ConsolidationConfig | None = None
    """None: memory is consolidated by `nearfar memory sleep` alone; else in the background, too, while no task is served."""
    peers: Mapping[PeerName, PeerConfig] = {}

    @model_validator(mode="after")
    def _is_one_database(self) -> Self:
        if self.postgres_variable is not None and (self.path is not None or self.key_variable is not None):
            raise ValueError("postgres_variable stands in place of path and key_variable: give one or the other")
        return self

    def anchored(self, folder: Path) -> "MemoryConfig":
        """The same with its relative paths made absolute."""
        peers = {name: _anchored(peer, folder) for name, peer in self.peers.items()}
        path = None if self.path is None else folder / self.path.expanduser()
        return self.model_copy(update={"path": path, "peers": peers})


def _anchored(peer: PeerConfig, folder: Path) -> PeerConfig:
    files = {name: getattr(peer, name) for name in ("certificate", "client_certificate", "client_key")}
    return peer.model_copy(update={name: folder / file.expanduser() for name, file in files.items() if file is not None})
