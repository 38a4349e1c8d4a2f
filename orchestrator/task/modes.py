"""Modes and strategies, and all that is known of a task before it is served: the situation of its device, and features of its prompt."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

from ...protocols import Capabilities, ConfigError, DeviceState, Prices, Sensitivity, Side
from ...protocols.steps import Value
from ..util.plugins import has_plugin

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier


SURE: Final = 0.9
"""Least probability of a language that counts as known."""
_READ: Final = 2000
"""Number of characters of a prompt from which its language is detected."""
NAME: Final = "<name>"
NUMBER: Final = "<number>"
_WORD: Final = re.compile(r"\d[\d.,:]*|[^\W\d_]+|['\u2019]s\b|[.!?\n]")
_PART_OF_NAME: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_STATEFUL_VERBS: Final = """
accept add append approve archive assign book buy cancel charge clear close commit complete confirm create decline delete deploy disable
dismiss drop edit email enable execute forward insert install invite invoke kill like mail make mark merge message modify mount move order
pay place post publish purchase push put record refund register reject release remove rename reply request reschedule reserve reset restart
restore revoke run save schedule sell send set share shut sign start stop submit subscribe swap toggle transfer trash type undo uninstall
unsubscribe update upload withdraw write
"""
_READING_VERBS: Final = """
browse calculate check compare compute convert count describe download fetch find get has inspect is list load look lookup open parse peek
preview query read retrieve scan search select show view
"""
_CHANGES: Final[Mapping[str, bool]] = {
    **dict.fromkeys(_STATEFUL_VERBS.split(), True),
    **dict.fromkeys(_READING_VERBS.split(), False),
}
_QUESTION_WORDS: Final = """
are can could did do does had has have how is should was were what when where which who whom whose why will would
"""
_QUESTION_OPENERS: Final = frozenset(_QUESTION_WORDS.split())
_RELATIONS: Final = frozenset({"of", "'s", "\u2019s", "whose"})
_COORDINATORS: Final = frozenset({"and", "then"})
_LONG_CONTEXT: Final = 1500
"""Words of a context above which it is better read in pieces."""
_LENGTHS: Final = ((8, "very short"), (20, "short"), (60, "medium"), (1000, "long"))


class Mode(StrEnum):
    """How far from the device the user lets a task go."""

    ONLY_ON_DEVICE = "only_on_device"
    PREFER_ON_DEVICE = "prefer_on_device"
    AUTO = "auto"
    """Both sides, by the objective; the near one first if nothing is known of either, since it is free."""
    PREFER_IN_CLOUD = "prefer_in_cloud"
    ONLY_IN_CLOUD = "only_in_cloud"


class Strategy(StrEnum):
    """The way in which the two sides work on a task: one of these, or an installed plugin of `nearfar.strategies`."""

    DEVICE = "device"
    """The near agent alone."""
    CLOUD = "cloud"
    """The far agent; the near one steps in where it fails and the mode allows. Refuses private tasks."""
    ROUTE = "route"
    """The router picks an agent before any token; the others are the fallback."""
    CASCADE = "cascade"
    """The near agent drafts; evidence about the draft decides whether the far one answers instead."""
    PEVR = "pevr"
    """Plan, execute, verify, replan: one side plans the task and checks at intervals whether the other keeps to the plan."""
    EVA = "eva"
    """Execute, verify, advise: one side checks the other's progress at intervals, and sums up and advises where it is lacking."""
    MINIONS = "minions"
    """The near agent reads a long context in pieces, for jobs that the far one writes without seeing it."""
    SUBTASKS = "subtasks"
    """The task is cut into subtasks; independent ones run in parallel, each routed on its own."""
    SPECULATE = "speculate"
    """The far agent, as in `cloud`, with the near one running ahead: far is asked about its proposals before they are confirmed."""
    AUTO = "auto"
    """One of the others, chosen per task from the outcomes of similar tasks."""

    @classmethod
    def _missing_(cls, value: object) -> "Strategy | None":
        """Return the strategy that a plugin offers under this name: always the same object, which the list of strategies leaves out."""
        if not isinstance(value, str) or not has_plugin("strategies", value):
            return None
        found = str.__new__(cls, value)
        found._name_ = found._value_ = value
        known = cls._value2member_map_.setdefault(value, found)
        assert isinstance(known, cls), "the map holds members alone"
        return known


SUPERVISED = frozenset({Strategy.PEVR, Strategy.EVA})
"""Strategies in which one side works and the other one supervises it."""
ALONE = (Strategy.DEVICE, Strategy.CLOUD, Strategy.ROUTE, Strategy.CASCADE, Strategy.SPECULATE)
"""Strategies in which one agent can do all the work."""
TEXT_ONLY = SUPERVISED | {Strategy.MINIONS, Strategy.SUBTASKS}
"""Strategies that write prompts of their own from the task's text."""
ONLY_TEXT: Final = "it works on text, and the task carries images or documents"
"""Why such a strategy does not serve a task."""
CLOUD_LIKE = frozenset({Strategy.CLOUD, Strategy.SPECULATE})
"""Strategies in which each step of the answer is the far agent's."""
FAR_FIRST = frozenset({*CLOUD_LIKE, Strategy.MINIONS, Strategy.SUBTASKS})
"""Strategies that begin on the far side, where the mode allows it."""


class AgentView(Protocol):
    """The properties of an agent that rules know before it is opened."""

    @property
    def name(self) -> str: ...
    @property
    def side(self) -> Side: ...
    @property
    def capabilities(self) -> Capabilities | None: ...
    @property
    def prices(self) -> Prices | None: ...


@dataclass(frozen=True, slots=True)
class Situation:
    """One task, and the device and the budgets as they are now. None means unknown."""

    sensitivity: Sensitivity
    """The task's sensitivity."""
    tokens: int
    """Estimated tokens of the prompt."""
    now: datetime
    """Local time."""
    task_class: str = ""
    """Class of the task from coarse to fine: `search/hops`; empty: unknown."""
    role: str = ""
    """Name of the role whose work it is; empty: of none."""
    tools: frozenset[str] = frozenset()
    """Names of the tools that the task may call."""
    tags: frozenset[str] = frozenset()
    """The task's tags."""
    languages: frozenset[str | None] = frozenset({None})
    """ISO 639-1 codes of the user's texts; None among them: the language of a text is unknown."""
    device: DeviceState = DeviceState()
    """The state of this device now."""
    budget_left: float | None = None
    """Smallest share that is left of the limits for the session and the day, 0 to 1; None: there are no limits."""


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


class Shape(StrEnum):
    """The coarsest class of a task, which needs no outcomes to be known."""

    STATEFUL_TOOLS = "stateful tools"
    """At least one tool changes something: its name starts with a verb such as `send`, `add` or `pay`."""
    READING_TOOLS = "reading tools"
    """All tools only look things up."""
    LONG_CONTEXT = "a long context"
    """No tools, and more than 1500 words to read apart from the prompt."""
    PROMPT = "a prompt alone"
    """No tools, and no long context."""


class TaskProfile(Value):
    """The features of one task."""

    prompt: str
    """The user's last words; empty if they are private and must not be stored."""
    tools: tuple[str, ...] = ()
    """Names of the tools that the agents may call."""
    context_words: int = 0
    """Number of words of the context, which is separate from the prompt."""
    attachments: int = 0
    """Number of images and documents in the messages."""
    shape: Shape
    """The form of the answer that it asks for."""
    length: str
    """Class of the prompt's number of words: very short (to 8), short (to 20), medium (to 60), long (to 1000) or huge."""
    is_question: bool
    """The prompt ends with a question mark."""

    @classmethod
    def of(cls, prompt: str, tools: Sequence[str] = (), *, context_words: int = 0, attachments: int = 0) -> "TaskProfile":
        """Read the features of a task."""
        words = len(prompt.split())
        return cls(
            prompt=prompt,
            tools=tuple(tools),
            context_words=context_words,
            attachments=attachments,
            shape=_shape(tools, context_words),
            length=next((name for most, name in _LENGTHS if words <= most), "huge"),
            is_question=_is_question(prompt),
        )

    @property
    def form(self) -> str:
        """Return the finest group that features alone tell apart."""
        return f"{self.length} {'question' if self.is_question else 'request'}"

    @property
    def relations(self) -> int:
        """Return the number of steps from one thing to another in the prompt: `of`, `'s`, `whose`."""
        return sum(word in _RELATIONS for word in self.words)

    @property
    def parts(self) -> int:
        """Return the number of further parts of the prompt: a comma, `and`, `then`."""
        return sum(word in _COORDINATORS for word in self.words) + self.prompt.count(",")

    @property
    def words(self) -> tuple[str, ...]:
        """Return the prompt's words in order and in lower case, with placeholders for names and numbers, which differ between similar
        tasks."""
        return tuple(_words(self.prompt))

    def __str__(self) -> str:
        return f"{self.form} with {self.shape}" if self.shape is not Shape.PROMPT else f"{self.form} alone"


def changes_something(tool: str) -> bool:
    """Return whether a tool's name says that it changes something: the first verb in it decides; without one it counts as reading."""
    verbs = (_CHANGES[part.lower()] for part in _PART_OF_NAME.findall(tool) if part.lower() in _CHANGES)
    return next(verbs, False)


def _shape(tools: Sequence[str], context_words: int) -> Shape:
    if tools:
        return Shape.STATEFUL_TOOLS if any(map(changes_something, tools)) else Shape.READING_TOOLS
    return Shape.LONG_CONTEXT if context_words > _LONG_CONTEXT else Shape.PROMPT


def _is_question(prompt: str) -> bool:
    text = prompt.strip()
    first = text.split(maxsplit=1)[0].lower().strip("\"'") if text else ""
    return text.endswith("?") or first in _QUESTION_OPENERS


def _words(prompt: str) -> Iterator[str]:
    opens_sentence, in_name = True, False
    for word in _WORD.findall(prompt):
        if word in ".!?\n":
            opens_sentence, in_name = True, False
            continue
        is_name = word[0].isupper() and not opens_sentence and word != "I"
        if not (is_name and in_name):  # a name of several words is one name
            yield NAME if is_name else NUMBER if word[0].isdigit() else word.lower()
        opens_sentence, in_name = False, is_name
