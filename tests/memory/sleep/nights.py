"""What the tests of consolidation work with."""

from dataclasses import dataclass
from typing import Any

from nearfar.orchestrator.memory.agent_memory import AgentMemory, Fact
from nearfar.orchestrator.memory.consolidation import Consolidator
from nearfar.orchestrator.memory.consolidation_journal import CONSOLIDATION
from nearfar.orchestrator.memory.episodic import MemoryTurn
from nearfar.orchestrator.memory.ranking import TEXT, Granularity, episodic
from nearfar.orchestrator.memory.reading import MemoryItem
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.task.stores import ConsolidationConfig
from nearfar.protocols import Agent, DeviceStateSource
from nearfar.protocols.items import Source, Tier

HOUR = 3600.0
TRAVELS = [f"On day {n} Ann went to Rome with Tom and paid {n * 10 + 7} euros for a museum." for n in range(4)]
CATS = [f"Ann has a cat that is called Felix{n} and eats fish on most days of the week." for n in range(4)]


@dataclass
class Clock:
    """Seconds since the epoch."""

    time: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.time


@dataclass
class Night:
    """A memory, and the time at which it is consolidated."""

    store: MemoryStore
    clock: Clock

    def talk(self, session: str, *topics: list[str], subject: str = "", tier: Tier = Tier.DEVICE, source: Source = Source.USER) -> None:
        """Remember a session and end it; an hour and more passes."""
        memory = AgentMemory(self.store)
        for text in [text for topic in topics for text in topic]:
            memory.remember(MemoryTurn(speaker="Ann", text=text, source=source, subject=subject, tier=tier), session)
        memory.episodes.close(session)
        self.clock.time += 2 * HOUR

    def learn(self, attribute: str, statement: str, *, about: str = "Ann", source: Source = Source.USER, **options: Any) -> None:  # noqa: ANN401 - whatever facts have
        AgentMemory(self.store).facts.learn(Fact(about=about, attribute=attribute, statement=statement, source=source, **options))
        self.clock.time += 1

    def sleeper(self, agent: Agent | None = None, device_state: DeviceStateSource | None = None, **policy: Any) -> Consolidator:  # noqa: ANN401 - whatever the policy has
        return Consolidator(self.store, agent=agent, device_state=device_state, policy=ConsolidationConfig(**policy), now=self.clock)

    def summaries(self) -> list[MemoryItem]:
        found = self.store.search(episodic((), Granularity.SUMMARY), limit=1000)
        return sorted(found, key=lambda item: item.key)

    def known(self) -> set[str]:
        """The statements that hold now."""
        return {item.value[TEXT] for item in self.store.search(("semantic",), limit=1000)}

    def everything(self) -> dict[Any, Any]:
        """All that readers can tell of the store, but for the journal and when each item was written last."""
        items = self.store.search((), limit=10_000, include_superseded=True)
        told = {item.address: item.dict() for item in items if CONSOLIDATION not in item.namespace}
        return {place: {name: part for name, part in said.items() if name not in ("version", "updated_at")} for place, said in told.items()}
