"""Random histories of one item on a few devices, in which every field of every write has a token of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from hypothesis import strategies as st

from nearfar.orchestrator.memory.merge import State, heads_of, merge, succeed
from nearfar.orchestrator.memory.operation import COUNTER_BITS, Dot, Meta, Operation
from nearfar.protocols.items import ItemAddress, Tier

ITEM = ItemAddress(("notes",), "item")
YEAR = 365 * 86_400_000 << COUNTER_BITS
DEVICES = 3


class Kind(Enum):
    """A way to write."""

    PUT = auto()
    PATCH = auto()
    DELETE = auto()
    KEEP_PRESENT = auto()
    """Decide for what the item says."""


@dataclass(frozen=True)
class Step:
    """A write that a device makes."""

    device: int
    kind: Kind
    set: frozenset[str]
    """Fields that get a new token."""
    removed: frozenset[str] = frozenset()
    heard: frozenset[int] = frozenset()
    """Devices whose state arrives before."""
    ahead: int = 0
    """By how much the device's clock is."""


@dataclass(frozen=True)
class Made:
    """A write as it was acknowledged."""

    operation: Operation
    ancestors: frozenset[Dot]
    """Writes that its device knew."""
    tokens: Mapping[str, str]
    """What it said in the fields that it wrote."""
    is_total: bool
    written: frozenset[str]
    """Fields that it set or removed."""
    decided: frozenset[str]
    """Tokens that its device was told of as lost, and which it decided on."""
    lost: frozenset[str]
    """Tokens that its device was told of as lost, and which it neither decided on nor deleted."""


class History:
    """What the devices have of the item after the steps."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.heads: list[tuple[Operation, ...]] = [()] * DEVICES
        self.made: dict[Dot, Made] = {}
        self._counts = [0] * DEVICES
        for time, step in enumerate(steps, 1):
            self._do(step, time)

    @property
    def operations(self) -> list[Operation]:
        return [made.operation for made in self.made.values()]

    def overwritten(self, dot: Dot, name: str) -> bool:
        """Whether a write whose device saw this one in the item wrote the field too or replaced the whole value, or one decided on it."""
        token = self.made[dot].tokens.get(name)
        later = [made for made in self.made.values() if dot in made.ancestors and token not in made.lost]
        return any(made.is_total or token in made.decided or name in made.written for made in later)

    def _do(self, step: Step, time: int) -> None:
        known = heads_of([head for one in (step.device, *step.heard) for head in self.heads[one]])
        state = merge(known) if known else None
        before = None if state is None else state.value
        kind = step.kind if before is not None or step.kind is Kind.PUT else Kind.PATCH
        self._counts[step.device] += 1
        dot = Dot(f"device{step.device}", self._counts[step.device])
        tokens = {name: f"{name}-{dot.device}-{dot.sequence}" for name in step.set} if kind in (Kind.PUT, Kind.PATCH) else {}
        removed = step.removed & (before or {}).keys() - tokens.keys() if kind is Kind.PATCH else frozenset()
        value = {**({} if kind is Kind.PUT else before or {}), **tokens}
        operation = succeed(
            known,
            dot=dot,
            clock=(time << COUNTER_BITS) + step.ahead,
            address=ITEM,
            value=None if kind is Kind.DELETE else {name: token for name, token in value.items() if name not in removed},
            meta=Meta(tier=Tier.USER),
            is_total=kind in (Kind.PUT, Kind.DELETE),
            decides=kind is Kind.KEEP_PRESENT,
        )
        ancestors = frozenset(head.dot for head in known).union(*(self.made[head.dot].ancestors for head in known))
        told = frozenset[str]() if state is None else lost_tokens(state)
        decided = told if kind is Kind.KEEP_PRESENT else frozenset[str]()
        lost = told if kind in (Kind.PUT, Kind.PATCH) else frozenset[str]()
        self.made[dot] = Made(operation, ancestors, tokens, kind in (Kind.PUT, Kind.DELETE), frozenset(tokens) | removed, decided, lost)
        self.heads[step.device] = heads_of((*known, operation))


def lost_tokens(state: State) -> frozenset[str]:
    """The tokens that the state shows as lost."""
    return frozenset(str(one.value[name]) for one in state.siblings for name in one.lost if name in one.value)


_FIELDS = st.frozensets(st.sampled_from("abc"), max_size=3)
steps = st.lists(
    st.builds(
        Step,
        device=st.integers(0, DEVICES - 1),
        kind=st.sampled_from([Kind.PUT, Kind.PUT, Kind.PATCH, Kind.PATCH, Kind.PATCH, Kind.DELETE, Kind.KEEP_PRESENT]),
        set=_FIELDS,
        removed=_FIELDS,
        heard=st.frozensets(st.integers(0, DEVICES - 1)),
        ahead=st.sampled_from([0, 1, YEAR]),
    ),
    min_size=1,
    max_size=12,
)
