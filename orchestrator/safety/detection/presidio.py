"""Microsoft Presidio as a detector, if its package and a spaCy model are installed."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ....protocols.errors import ConfigError
from . import PrivateFinding

if TYPE_CHECKING:
    from presidio_analyzer import AnalyzerEngine


_REFUSED: Final = frozenset(
    {
        *("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"),
    }
)
"""Audit events of Python (PEP 578): what reaches a network, and what starts a process that could."""
_this_thread: Final = threading.local()


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


_TYPES: Final = {"PERSON": "person", "LOCATION": "place", "NRP": "group"}
"""Our types for those that Presidio reports. Its own patterns are not used: ours cover them, and two of its fetch a list of domains."""


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
            results = engine.analyze(text, language=language, entities=list(_TYPES))
        return [PrivateFinding(each.start, each.end, _TYPES[each.entity_type], text[each.start : each.end]) for each in results]

    @cached_property
    def _engine(self) -> "tuple[AnalyzerEngine, str]":
        """Presidio with its model, and the model's language."""
        import spacy
        from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
        from presidio_analyzer.nlp_engine import SpacyNlpEngine
        from presidio_analyzer.predefined_recognizers import SpacyRecognizer

        model = spacy.load(self._model)
        language = model.lang
        reader = SpacyNlpEngine(models=[{"lang_code": language, "model_name": self._model}])
        reader.nlp = {language: model}
        names = SpacyRecognizer(supported_language=language, supported_entities=list(_TYPES))
        registry = RecognizerRegistry(recognizers=[names], supported_languages=[language])
        return AnalyzerEngine(registry=registry, nlp_engine=reader, supported_languages=[language]), language


def _is_installed(model: str) -> bool:
    try:
        return Path(model).is_dir() or distribution(model) is not None
    except (PackageNotFoundError, ValueError):
        return False
