"""Worlds by name, those that ship with nearfar and `package.module:factory` for the user's own, and the words of the shipped ones."""

import importlib
import logging
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from ....protocols import Agent, ConfigError, InvalidRequest, NearfarError
from ...task.tools import Tool, tool
from . import SPLITS, Grade, OracleAgent, Split, World, WorldTask, names
from .apps import AppsWorld
from .questions import RELATIONS, Author, Facts, PassageIndex, SearchQuestion

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


logger = logging.getLogger(__name__)
SHIPPED: Final[Mapping[str, str]] = {
    "search": "nearfar.orchestrator.lab.worlds.loading:SearchWorld",
    "apps": "nearfar.orchestrator.lab.worlds.apps:AppsWorld",
}
"""Worlds with generated tasks, which contain no secrets; each opens on its test split."""
_KINDS = ("person", "company", "city", "country", "thing", "event", "note")
_BATCHES = 16
_BATCH = 25
"""Prompts of each world that its common words are looked for in: in all together, every one of them occurs far more often than once."""
_WORD = re.compile(r"[^\W\d_]+")


def open_world(name: str) -> World:
    """Open the world of a name. Raises `ConfigError` that says what is missing if it is no world."""
    world = open_factory(SHIPPED.get(name, name), "world")
    missing = [part for part in ("name", "tasks", "reset") if not hasattr(world, part)]
    if missing:
        raise ConfigError(
            f"{name} makes {world!r}, which is no World: it has no {' and no '.join(missing)}", hint="docs/sweep.md has an example"
        )
    assert isinstance(world, World), "it has all parts"
    return world


def open_factory(name: str, what: str) -> object:
    """Call `package.module:factory`. Raises `ConfigError` where there is no such thing, or it fails."""
    factory = _factory(name, what)
    try:
        return factory()
    except NearfarError:
        raise
    except Exception as error:  # a task boundary: the factory is the user's own program
        logger.exception("the factory %s failed", name)
        raise ConfigError(f"{what} {name} fails while it is made: {type(error).__name__}: {error}") from error


def draw_tasks(world: World, count: int, seed: int) -> Sequence[WorldTask]:
    """Draw tasks of the world, with distinct identifiers. Raises `ConfigError` where the world breaks its contract."""
    try:
        tasks = list(world.tasks(count, seed))
    except NearfarError:
        raise
    except Exception as error:  # a task boundary: the world is the user's own program
        logger.exception("world %s draws no tasks", world.name)
        raise ConfigError(f"world {world.name!r} fails to draw tasks: {type(error).__name__}: {error}") from error
    foreign = [task for task in tasks if not isinstance(task, WorldTask)]
    if foreign:
        raise ConfigError(f"world {world.name!r} draws {foreign[0]!r}, which is no WorldTask", hint="docs/sweep.md has an example")
    if not tasks:
        raise ConfigError(f"world {world.name!r} draws no tasks for seed {seed}")
    if len({task.identifier for task in tasks}) < len(tasks):
        raise ConfigError(f"world {world.name!r} gives two tasks of seed {seed} the same identifier")
    return tasks


def _factory(name: str, what: str) -> Callable[[], object]:
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        known = f"{', '.join(SHIPPED)}, or " if what == "world" else ""
        raise ConfigError(f"there is no {what} {name!r}", hint=f"write {known}package.module:factory")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # an installed command does not look where the user stands
    try:
        factory = getattr(importlib.import_module(module_name), attribute, None)
    except ImportError as error:
        raise ConfigError(f"{what} {name}: {error}", hint="is the module on PYTHONPATH or in this folder?") from error
    except Exception as error:  # a task boundary: the module is the user's own program
        logger.exception("the module of %s failed", name)
        raise ConfigError(f"{what} {name} fails while it is loaded: {type(error).__name__}: {error}") from error
    if not callable(factory):
        raise ConfigError(f"{what} {name}: the module has no function or class {attribute!r}")
    found: Callable[[], object] = factory
    return found


def understands(prompt: str) -> bool:
    """Tell whether a prompt has only words that the worlds use.

    Models trained in these worlds make nothing of any other; they may still fail on one that is put in their words.
    """
    words = _WORD.findall(prompt)
    unknown = set(words) - _proper_words()
    return bool(words) and (not unknown or any(unknown <= known for known in _growing_vocabulary()))


@lru_cache(maxsize=1)
def _proper_words() -> frozenset[str]:
    called = [name for kind in _KINDS for split in SPLITS for name in names(kind, split)]
    attributes = [name for relations in RELATIONS.values() for name in relations]
    return frozenset(_WORD.findall(" ".join([*called, *attributes])))


def _growing_vocabulary() -> Iterator[set[str]]:
    """Yield the words of more and more prompts: making them all takes a tenth of a second, which few prompts need."""
    known = set(_proper_words())
    for seed in range(_BATCHES):
        for world in (SearchWorld(), AppsWorld()):
            known.update(word for task in world.tasks(_BATCH, seed=seed) for word in _WORD.findall(task.prompt))
        yield known
