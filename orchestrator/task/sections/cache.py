"""The `[cache]` section of nearfar.toml: which agents a cache stands in front of, and how far it may go."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field, model_validator

from ....protocols import Side
from ....protocols.messages import Value

LEAST_THRESHOLD: Final = 0.85
"""No threshold is learned below. Questions that the guards pass lie above it, so a lower one adds wrong answers at best."""


DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class CategoryRules:
    """How the questions of one category are cached, with nothing left open."""

    cacheable: bool
    semantic: bool
    threshold: float
    time_to_live: float
    entries: int


class CategoryConfig(Value):
    """How the questions of one category are cached. What is None is as in the whole cache."""

    cacheable: bool = True
    """False: nothing of the category is stored."""
    semantic: bool | None = None
    """Whether another wording may be served."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    time_to_live: float | None = Field(default=None, gt=0)
    entries: int | None = Field(default=None, gt=0)


class CacheConfig(Value):
    """How answers are cached; the section's presence turns the cache on."""

    path: Path | None = None
    """Of the cache's file; None: `answers.db` in the user's cache folder."""
    sides: tuple[Side, ...] = (Side.FAR,)
    """Agents of these sides are cached. A near agent costs no dollars, and its answers may be wanted fresh."""
    semantic: bool = True
    """Serve a question that was asked in other words, where no guard objects; False: only what was asked in the same words."""
    threshold: float = Field(default=0.9, ge=0, le=1)
    """The cosine similarity from which another wording may be served, until a category has judged enough pairs of its own."""
    time_to_live: float = Field(default=7 * DAY, gt=0)
    """Seconds after which an answer is removed."""
    entries: int = Field(default=10_000, gt=0)
    """Answers of one category that are kept; beyond, those go first that were not used for longest."""
    false_hit_budget: float = Field(default=0.02, gt=0, lt=1)
    """The share of hits in other words that may be wrong. Thresholds are learned such that the share is below at a confidence of 95 %."""
    relaxed_budget: float | None = Field(default=None, gt=0, lt=1)
    """The same while the agent is overloaded; None: load changes nothing."""
    shadow_share: float = Field(default=0.02, ge=0, le=1)
    """Of the questions with a stored answer in other words, the share that is answered afresh, to see whether both answers say the same."""
    verifier: str | None = None
    """An agent on this device that is asked before an answer in other words is served; None: nobody is."""
    minimum_confidence: float = Field(default=0.7, ge=0, le=1)
    """Answers whose confidence is known and lower are not stored."""
    plans: bool = False
    """Let `pevr` and `subtasks` start from the plan of an earlier task of the same intent."""
    categories: Mapping[str, CategoryConfig] = {}
    """By name: a task class (`billing`, `billing/refund`), or `general`, `code`, `creative`, `current`, `other_language`."""

    @model_validator(mode="after")
    def _relaxing_does_not_tighten(self) -> "CacheConfig":
        if self.relaxed_budget is not None and self.relaxed_budget < self.false_hit_budget:
            raise ValueError("relaxed_budget is below false_hit_budget")
        return self

    def of_category(self, name: str) -> CategoryRules:
        """The rules of a category. Those of `current`, `creative` and `code` are strict unless they are set."""
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
        """Thresholds below the lowest that is ever learned, by the name of their key."""
        named = {"threshold": self.threshold, **{f"categories.{name}.threshold": own.threshold for name, own in self.categories.items()}}
        return {key: value for key, value in named.items() if value is not None and value < LEAST_THRESHOLD}

    def anchored(self, folder: Path) -> "CacheConfig":
        """With a relative path made absolute."""
        return self if self.path is None else self.model_copy(update={"path": folder / self.path.expanduser()})

    @property
    def file(self) -> Path:
        """Where the cache is kept."""
        return self.path or default_file(os.environ)


_BUILT_IN: Final[Mapping[str, CategoryConfig]] = {
    "current": CategoryConfig(cacheable=False),  # what is asked for changes by the hour
    "creative": CategoryConfig(semantic=False),  # whoever asks in other words wants another poem
    "code": CategoryConfig(semantic=False),  # one character makes another program
}


def default_file(environment: Mapping[str, str]) -> Path:
    """Below `NEARFAR_HOME`, else below the user's cache folder as the XDG base directory specification names it."""
    home = environment.get("NEARFAR_HOME")
    if home:
        return Path(home).expanduser() / "cache" / "answers.db"
    cache = environment.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "nearfar" / "answers.db"
