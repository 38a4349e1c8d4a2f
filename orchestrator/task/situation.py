"""The situation of a task: all that routing rules look at, at one moment."""

import unicodedata
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Final

from ...protocols import ConfigError, DeviceState, Sensitivity

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

CHARACTERS_PER_TOKEN: Final = 4
"""Characters per token of ordinary English under the usual tokenizers: an estimate for prompts before they are sent."""
SURE: Final = 0.9
"""Least probability of a language that counts as known."""
_READ: Final = 2000
"""Number of characters of a prompt from which its language is detected."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One task, and the device and the budgets as they are now. None means unknown."""

    sensitivity: Sensitivity
    tokens: int
    """Estimated tokens of the prompt."""
    now: datetime
    """Local time."""
    task_class: str = ""
    """Class of the task from coarse to fine: `search/hops`; empty: unknown."""
    tools: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    languages: frozenset[str | None] = frozenset({None})
    """ISO 639-1 codes of the user's texts; None among them: the language of a text is unknown."""
    device: DeviceState = DeviceState()
    budget_left: float | None = None
    """Smallest share that is left of the limits for the session and the day, 0 to 1; None: there are no limits."""


def estimated_tokens(text: str) -> int:
    """Return an estimate of a text's tokens, from its length."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def primary_language(code: str) -> str:
    """Return the primary language of a code: `de` for `DE` and `de-AT`."""
    return code.replace("_", "-").partition("-")[0].lower()


def language_of(text: str) -> str | None:
    """Return the ISO 639-1 code of a text's language; None if it is not sure. Raises `ConfigError` if py3langid is not installed."""
    sample = text[:_READ]
    letters = Counter(unicodedata.category(character)[0] for character in sample)["L"]
    if not letters:
        return None
    language, probability = _identifier().classify(sample)
    return str(language) if probability >= SURE else None


@cache
def _identifier() -> "LanguageIdentifier":
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        hint = "pip install 'nearfar[router]', or pass language= with each task"
        raise ConfigError("rules about the language need py3langid", hint=hint) from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
