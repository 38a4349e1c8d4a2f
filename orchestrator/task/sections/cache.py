"""The `[cache]` section of nearfar.toml: cached agents, and the rules for their answers."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field, model_validator

from ....protocols import Side
from ....protocols.messages import Value

LEAST_THRESHOLD: Final = 0.85
"""Lowest threshold that is learned. Questions that the guards pass lie above it, so a lower one only adds wrong answers."""


DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class CategoryRules:
    """Complete rules for the questions of one category."""

    cacheable: bool
    semantic: bool
    threshold: float
    time_to_live: float
    entries: int


class CategoryConfig(Value):
    """Cache rules for the questions of one category: a `[cache.categories.NAME]` section. None: as for the whole cache."""

    cacheable: bool = True
    """False: answers of the category are not stored."""
    semantic: bool | None = None
    """False: only a question in the same words is served; None: as for the whole cache."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    time_to_live: float | None = Field(default=None, gt=0)
    entries: int | None = Field(default=None, gt=0)


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
        """Return the rules of a category. Those of `current`, `creative` and `code` are strict unless they are set."""
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
        """Return the section with a relative path made absolute."""
        return self if self.path is None else self.model_copy(update={"path": folder / self.path.expanduser()})

    @property
    def file(self) -> Path:
        """Return the path of the cache's file."""
        return self.path or default_file(os.environ)


_BUILT_IN: Final[Mapping[str, CategoryConfig]] = {
    "current": CategoryConfig(cacheable=False),  # what is asked for changes by the hour
    "creative": CategoryConfig(semantic=False),  # a user who asks in other words wants another poem
    "code": CategoryConfig(semantic=False),  # one character makes another program
}


def default_file(environment: Mapping[str, str]) -> Path:
    """Return the default path: below `NEARFAR_HOME`, else below the user's cache folder of the XDG base directory specification."""
    home = environment.get("NEARFAR_HOME")
    if home:
        return Path(home).expanduser() / "cache" / "answers.db"
    cache = environment.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "nearfar" / "answers.db"
