"""`Situation`: everything that routing rules look at, for one task at one moment."""

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
"""Of ordinary English under the usual tokenizers; before a prompt is sent, nobody counts more exactly."""
SURE: Final = 0.9
"""Probability that a language must have to count as known."""
_READ: Final = 2000
"""Characters of a prompt from which its language is told."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One task, the device and the purse as they are now. None means unknown."""

    sensitivity: Sensitivity
    tokens: int
    """Of the prompt, estimated."""
    now: datetime
    """Local time."""
    task_class: str = ""
    """From coarse to fine: `search/hops`; empty: unknown."""
    tools: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    languages: frozenset[str | None] = frozenset({None})
    """ISO 639-1 codes of what the user said and gave; None among them: of some of it nobody knows."""
    device: DeviceState = DeviceState()
    budget_left: float | None = None
    """Of the limits for the session and the day, the share that is left where least is; None: there are none."""


def estimated_tokens(text: str) -> int:
    """Tokens of a text, from its length."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def primary_language(code: str) -> str:
    """`de` for `DE` and `de-AT`."""
    return code.replace("_", "-").partition("-")[0].lower()


def language_of(text: str) -> str | None:
    """ISO 639-1 code of the language of a text; None where it is not sure. Raises `ConfigError` where py3langid is not installed."""
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
