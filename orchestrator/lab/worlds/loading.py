"""Worlds by name, those that ship with nearfar and `package.module:factory` for the user's own, and the words of the shipped ones."""

import importlib
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from ....protocols import ConfigError, NearfarError
from .apps import AppsWorld
from .questions import RELATIONS
from .search import SearchWorld
from .world import SPLITS, World, WorldTask, names

logger = logging.getLogger(__name__)
SHIPPED: Final[Mapping[str, str]] = {
    "search": "nearfar.orchestrator.lab.worlds.search:SearchWorld",
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
