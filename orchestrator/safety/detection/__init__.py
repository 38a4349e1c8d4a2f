"""Detectors of private data: their interface, patterns, Microsoft Presidio for names, and several of them as one, which fails closed."""

import logging
import re
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from ....protocols.errors import ConfigError

UNCHECKED: Final = "unchecked"
"""Type of a whole text that a detector could not look through: it may hold anything."""
PLUGIN: Final = "plugin_"
"""Beginning of the types of what a plugin found, which always count."""
_SPECIFIC: Final = ("key", "iban", "card", "ssn", "national_id", "email", "ip", "birth_date", "phone", "address", "url")
"""Types from the most to the least specific. The order decides between findings of the same length."""
_RANKS: Final = {type: rank for rank, type in enumerate(_SPECIFIC)}
_PRESIDIO_TYPES: Final = {"PERSON": "person", "LOCATION": "place", "NRP": "group"}
"""Our types for those that Presidio reports. Its own patterns are not used: ours cover them, and two of its fetch a list of domains."""
_REFUSED: Final = frozenset(
    {
        *("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"),
    }
)
"""Audit events of Python (PEP 578): what reaches a network, and what starts a process that could."""
_this_thread: Final = threading.local()
logger = logging.getLogger(__name__)


class PrivateFinding(NamedTuple):
    """A piece of a text that looks private."""

    start: int
    """Place of its first character in the text."""
    end: int
    """Place behind its last character."""
    type: str
    """Type of the finding, such as `email` or `card`: lower case letters and `_`."""
    text: str
    """The piece itself."""


class Detector(Protocol):
    """Looks for private data. Any thread may call it, and it takes time in proportion to the text."""

    def find(self, text: str) -> Sequence[PrivateFinding]:
        """Return the findings in `text`, in any order; they may overlap."""
        ...


def resolve(findings: Iterable[PrivateFinding]) -> list[PrivateFinding]:
    """Return the findings in the order of the text. Overlapping ones become one, of the type of the longest and then most specific one."""
    joined: list[PrivateFinding] = []
    best = (0, 0)
    for finding in sorted(findings):
        weight = (finding.end - finding.start, -_RANKS.get(finding.type, len(_RANKS)))
        if not joined or finding.start >= joined[-1].end:
            joined.append(finding)
            best = weight
            continue
        last = joined[-1]
        type, best = (finding.type, weight) if weight > best else (last.type, best)
        rest = finding.text[last.end - finding.start :] if finding.end > last.end else ""
        joined[-1] = PrivateFinding(last.start, max(last.end, finding.end), type, last.text + rest)
    return joined


_DIGIT: Final = re.compile(r"\d")
Check = Callable[[re.Match[str]], bool]
_REACH: Final = 48
"""Characters before a match in which words may tell what it is."""


def always(match: re.Match[str]) -> bool:
    """Accept every match."""
    return True


class PatternDetector:
    """Finds what matches a pattern and passes a check.

    Args:
        group: the part of a match that is private.
        hints: one of these is in any text that has a match, in lower case: without them the pattern is not tried.
    """

    def __init__(self, type: str, pattern: re.Pattern[str], check: Check = always, *, group: int = 0, hints: Sequence[str] = ("",)) -> None:
        self._type = type
        self._pattern = pattern
        self._check = check
        self._group = group
        self._hints = hints

    def find(self, text: str) -> list[PrivateFinding]:
        lower = text.lower()
        for hint in self._hints:  # a generator would take longer than the search
            if hint in lower:
                break
        else:
            return []
        return [self._finding(match) for match in self._pattern.finditer(text) if self._check(match)]

    def _finding(self, match: re.Match[str]) -> PrivateFinding:
        return PrivateFinding(*match.span(self._group), self._type, match[self._group])


def follows(words: re.Pattern[str], match: re.Match[str]) -> bool:
    """Return whether one of the words stands in the text before a match."""
    return words.search(match.string, max(0, match.start() - _REACH), match.start()) is not None


def precedes(words: re.Pattern[str], match: re.Match[str]) -> bool:
    """Return whether one of the words stands directly behind a match."""
    return words.match(match.string, match.end(), match.end() + _REACH) is not None


def digits_of(text: str) -> str:
    """Return the digits of a number, of any script, as ASCII."""
    return "".join(str(int(character)) for character in text if character.isdecimal())


def has_digits(text: str, least: int) -> bool:
    """Return whether a text has at least `least` digits."""
    return any(count >= least for count, _ in enumerate(_DIGIT.finditer(text), start=1))


def lower_in_place(text: str) -> str:
    """Return the text in lower case, with each letter at its old position."""
    small = text.lower()
    return small if len(small) == len(text) else "".join(one if len(one) == 1 else letter for letter in text for one in [letter.lower()])


def any_of(words: Iterable[str]) -> str:
    """Return a pattern of any of these words, the longest first. Words with one first letter stand together, for speed."""
    by_letter: dict[str, list[str]] = {}
    for word in sorted(words, key=len, reverse=True):
        by_letter.setdefault(word[0], []).append(re.escape(word[1:]))
    return "|".join(f"{re.escape(letter)}(?:{'|'.join(rests)})" for letter, rests in by_letter.items())


class Detectors:
    """Combines detectors. If one of them fails, the whole text counts as a finding.

    Args:
        types: the types of findings to keep; None: all. Findings of other types do not hide any of these.
    """

    def __init__(self, detectors: Sequence[Detector], types: Container[str] | None = None) -> None:
        self._detectors = tuple(detectors)
        self._types = types

    def find(self, text: str) -> list[PrivateFinding]:
        """Return the findings in the order of the text, without overlaps."""
        found: list[PrivateFinding] = []
        for detector in self._detectors:
            try:
                found += detector.find(text)
            except Exception as error:  # a task boundary: a detector may be third-party code, and a failing one must let nothing pass
                logger.warning("the detector %s has failed: %s", type(detector).__name__, type(error).__name__)
                return [PrivateFinding(0, len(text), UNCHECKED, text)]
        return resolve(finding for finding in found if self._counts(finding))

    def _counts(self, finding: PrivateFinding) -> bool:
        always_counts = finding.type == UNCHECKED or finding.type.startswith(PLUGIN)
        return self._types is None or always_counts or finding.type in self._types


class NetworkRefused(RuntimeError):
    """Raised when code that has to stay offline tries to reach a network, or to start a process that could."""


@contextmanager
def without_network() -> Iterator[None]:
    """Let this thread open no connection, look up no name and start no process within the block: attempts raise `NetworkRefused`.

    It covers what goes through Python's own modules in this thread, not threads that it starts, nor machine code that calls the system.
    """
    _watch()
    before = getattr(_this_thread, "is_offline", False)
    _this_thread.is_offline = True
    try:
        yield
    finally:
        _this_thread.is_offline = before


@cache
def _watch() -> None:
    """Install the audit hook, once per process and only if needed: it cannot be removed."""
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _REFUSED and getattr(_this_thread, "is_offline", False):
        raise NetworkRefused(event)


class PresidioDetector:
    """Finds names. The model is read when the first text comes, which takes a second or more.

    Presidio would download a model that is not there, and so is not asked to read it. While it works, its thread reaches no network.

    Args:
        model: a spaCy model: the name of its package, or its folder.

    Raises:
        ConfigError: Presidio or the model is not installed.
    """

    def __init__(self, model: str) -> None:
        if find_spec("presidio_analyzer") is None:
            raise ConfigError("finding names needs presidio-analyzer", hint="pip install 'nearfar[presidio]'")
        if not _is_installed(model):
            raise ConfigError(f"there is no spaCy model {model!r}", hint=f"python -m spacy download {model}, or name a folder with a model")
        self._model = model
        self._lock = threading.Lock()

    def find(self, text: str) -> list[PrivateFinding]:
        with without_network():
            with self._lock:
                engine, language = self._engine
            results = engine.analyze(text, language=language, entities=list(_PRESIDIO_TYPES))
        return [PrivateFinding(each.start, each.end, _PRESIDIO_TYPES[each.entity_type], text[each.start : each.end]) for each in results]

    @cached_property
    def _engine(self) -> tuple[Any, str]:
        """Presidio's `AnalyzerEngine` with its model, and the model's language."""
        import spacy
        from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
        from presidio_analyzer.nlp_engine import SpacyNlpEngine
        from presidio_analyzer.predefined_recognizers import SpacyRecognizer

        model = spacy.load(self._model)
        language = model.lang
        reader = SpacyNlpEngine(models=[{"lang_code": language, "model_name": self._model}])
        reader.nlp = {language: model}
        names = SpacyRecognizer(supported_language=language, supported_entities=list(_PRESIDIO_TYPES))
        registry = RecognizerRegistry(recognizers=[names], supported_languages=[language])
        return AnalyzerEngine(registry=registry, nlp_engine=reader, supported_languages=[language]), language


def _is_installed(model: str) -> bool:
    try:
        return Path(model).is_dir() or distribution(model) is not None
    except (PackageNotFoundError, ValueError):
        return False
