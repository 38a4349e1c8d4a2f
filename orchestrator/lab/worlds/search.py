"""`SearchWorld`: questions that are answered by searching and opening passages."""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from ....protocols import Agent, InvalidRequest
from ...task.tools import Tool, tool
from .program import OracleAgent
from .questions import Author, Facts, PassageIndex, SearchQuestion
from .world import Grade, Split, WorldTask

TEST_MIX: Final[Mapping[str, float]] = {
    "1 hop": 0.12,
    "2 hops": 0.14,
    "3 hops": 0.14,
    "4 hops": 0.14,
    "comparison": 0.14,
    "fan-out": 0.14,
    "list": 0.08,
    "unanswerable": 0.10,
}
"""Share of each kind of question."""
TASKS_PER_TABLE: Final = 25
"""Questions that are asked about one table of facts before another is drawn."""


class SearchWorld:
    """Multi-hop, comparison, fan-out, list and unanswerable questions over generated passages; exact match and token F1."""

    name = "search"

    def __init__(self, split: Split = "test", mix: Mapping[str, float] = TEST_MIX) -> None:
        self._split: Split = split
        self._mix = dict(mix)
        self._table = lru_cache(maxsize=16)(self._make_table)
        self._by_prompt: dict[str, SearchQuestion] = {}

    def tasks(self, count: int, seed: int) -> Sequence[WorldTask]:
        """Draw `count` tasks; those of a smaller count come first."""
        return [self._task(seed, number) for number in range(count)]

    def reset(self, task: WorldTask) -> "SearchEpisode":
        """Open the passages that the task is about. Raises `InvalidRequest` for a task of another world."""
        table, question = self._find(task)
        return SearchEpisode(question, PassageIndex(self._table(*table)[0].passages))

    def oracle(self) -> Agent:
        """Return the supervisor that knows every solution."""
        return OracleAgent(self.name, self._by_prompt.get)

    def question(self, task: WorldTask) -> SearchQuestion:
        """Return the task with its solution. Raises `InvalidRequest` for a task of another world."""
        return self._find(task)[1]

    def _task(self, seed: int, number: int) -> WorldTask:
        question = self._table(seed, number // TASKS_PER_TABLE)[1][number % TASKS_PER_TABLE]
        self._by_prompt[question.text] = question
        identifier = f"search-{self._split}-{seed}-{number}"
        return WorldTask(identifier=identifier, prompt=question.text, kind=question.kind, difficulty=question.difficulty)

    def _find(self, task: WorldTask) -> tuple[tuple[int, int], SearchQuestion]:
        match = re.fullmatch(rf"search-{self._split}-(-?\d+)-(\d+)", task.identifier)
        if match is None:
            raise InvalidRequest(f"{task.identifier!r} is no task of this search world", hint="take tasks from the world that resets them")
        seed, number = int(match[1]), int(match[2])
        table = (seed, number // TASKS_PER_TABLE)
        question = self._table(*table)[1][number % TASKS_PER_TABLE]
        if question.text != task.prompt:
            raise InvalidRequest(
                f"{task.identifier!r} asks something else in this world", hint="take tasks from the world that resets them"
            )
        self._by_prompt[question.text] = question
        return table, question

    def _make_table(self, seed: int, number: int) -> tuple[Facts, list[SearchQuestion]]:
        facts = Facts(seed * 100_003 + number, self._split)
        index = PassageIndex(facts.passages)
        random_ = random.Random(f"search/{self._split}/{seed}/{number}/questions")
        author = Author(facts, index, random_)
        kinds = random_.choices(list(self._mix), list(self._mix.values()), k=TASKS_PER_TABLE)
        questions = [author.question(kind) for kind in kinds]
        index.close()
        return facts, questions


class SearchEpisode:
    """One question being worked on."""

    def __init__(self, question: SearchQuestion, index: PassageIndex) -> None:
        self._question = question
        self._index = index
        self.tools: Sequence[Tool] = search_tools(index)

    def grade(self, answer: str) -> Grade:
        """Grade an answer. Success is an exact match; the score is the token F1. Lists may come in any order."""
        exact = exact_match(answer, self._question.answer)
        overlap = token_f1(answer, self._question.answer)
        return Grade(success=bool(exact), score=overlap, measures={"exact_match": exact, "f1": overlap})

    def close(self) -> None:
        self._index.close()


def search_tools(index: PassageIndex) -> tuple[Tool, Tool]:
    """Return the two tools of the world, on one set of passages."""

    async def search(query: str) -> str:
        """Titles of the passages that fit the words of the query best."""
        return index.search(query)

    async def open(title: str, section: str) -> str:
        """A section of the passage with this exact title."""
        return index.open(title, section)

    own = tool(effect="read", source="internal_tool")
    return own(search), own(open)


def exact_match(answer: str, expected: str) -> float:
    """Return 1 where the answers agree but for case, spacing, a final full stop and the order of a list; else 0."""
    return float(_items(answer) == _items(expected))


def token_f1(answer: str, expected: str) -> float:
    """Return the harmonic mean of precision and recall over words (Rajpurkar et al. 2016)."""
    given, wanted = (Counter(re.findall(r"\w+", text.casefold())) for text in (answer, expected))
    common = sum((given & wanted).values())
    return 2 * common / (given.total() + wanted.total()) if common else 0.0


def _items(answer: str) -> list[str]:
    return sorted(" ".join(item.split()).removesuffix(".").casefold() for item in answer.split(","))
