"""Secrets: read them when a step needs one, and keep them out of errors, logs and requests."""

import base64
import configparser
import html
import logging
import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Final, Literal, Protocol

from .errors import ConfigError

KEYRING_SERVICE = "nearfar"

_SHOWN = 300
_REDACTED: Final = "[redacted]"
_KEYLIKE = re.compile(r"(?i)\b(?:sk|pk|rk|key)-[\w*.-]{6,}|\bAIza[\w-]{10,}|\bbearer\s+\S+|(?<=[?&]key=)[^&\s]+")
_SHORTEST: Final = 8
"""Shortest text that counts as a key, in characters; shorter ones are placeholders such as "none"."""
_TALKATIVE: Final = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy", "httpcore.socks")
"""Loggers that repeat a server's answers, which may contain the key that it was sent."""

_withheld: Final[dict[str, re.Pattern[str]]] = {}


def withhold(key: str) -> None:
    """Redact this key from now on, in quoted text and in the logs of the libraries that send it."""
    if len(key) < _SHORTEST or key in _withheld:
        return
    if not _withheld:
        for name in _TALKATIVE:
            logging.getLogger(name).addFilter(_Withholding())
    _withheld[key] = _pattern(key)


def quote(text: str) -> str:
    """Return `text` without keys and key-like text, on one line and shortened to 300 characters."""
    text = _KEYLIKE.sub(_REDACTED, _without_keys(text))
    text = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _pattern(key: str) -> re.Pattern[str]:
    """Return a pattern for the key as it is, and in the spellings of JSON, URLs, HTML, Python's `repr` and base64."""
    packed = base64.b64encode(key.encode()).decode().rstrip("=")
    return re.compile("".join(map(_spellings, key)) + "|" + re.escape(packed))


def _spellings(character: str) -> str:
    if character.isalnum():
        return character
    code = ord(character)
    forms = {character, f"\\{character}", html.escape(character), f"\\u{code:04x}", f"\\u{code:04X}", f"%{code:02x}", f"%{code:02X}"}
    return f"(?:{'|'.join(map(re.escape, sorted(forms, key=len, reverse=True)))})"


def _without_keys(text: str) -> str:
    for pattern in tuple(_withheld.values()):  # another thread may add one
        text = pattern.sub(_REDACTED, text)
    return text


class _Withholding(logging.Filter):
    """Redacts keys in log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        record.msg, record.args = _without_keys(said), ()
        return True


def log_defect(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log that `what` failed with an unexpected error."""
    logger.error("%s:\n%s", what, described(error))


def described(error: BaseException) -> str:
    """Return the classes of an error and of its causes, with the lines of code that they passed through, innermost error first."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    parts = [described(inner) for inner in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    own = "".join((*traceback.format_tb(error.__traceback__), type(error).__qualname__, "\n"))
    return "".join(([described(earlier)] if earlier is not None else []) + [*parts, own])


Inspector = Callable[[bytes], None]
"""Raises `PrivacyViolation` if the bytes must not leave."""

_INSPECTOR: Final[ContextVar[Inspector | None]] = ContextVar("nearfar_egress_inspector", default=None)


@contextmanager
def inspected_by(inspector: Inspector) -> Iterator[None]:
    """Show everything that is sent to another process within the block, and by tasks started in it, to `inspector` first."""
    token = _INSPECTOR.set(inspector)
    try:
        yield
    finally:
        _INSPECTOR.reset(token)


def inspect(serialize: Callable[[], bytes]) -> None:
    """Show a message to the current inspector, if there is one. Raise what the inspector raises."""
    inspector = _INSPECTOR.get()
    if inspector is not None:
        inspector(serialize())


class Key(Protocol):
    """A source of a provider's key. Its `repr` never holds the key."""

    def reveal(self) -> str:
        """Return the key; may block on the keyring. Raise `ConfigError` if there is none."""
        ...


class StoredKey:
    """A key in an environment variable, or under the same name in the keyring (service "nearfar")."""

    def __init__(self, variable: str) -> None:
        self.variable = variable

    def __repr__(self) -> str:
        return f"StoredKey({self.variable!r})"

    def is_set(self) -> bool:
        """Return whether there is a key; may block on the keyring."""
        return bool(self._read())

    def find(self) -> str | None:
        """Return the secret, or None if there is none; may block on the keyring."""
        return self._read() or None

    @property
    def how_to_set(self) -> str:
        """Return how to set the key, as text for people."""
        return f"export {self.variable}=..., or store it once: nearfar keys set {self.variable}"

    def reveal(self) -> str:
        key = self._read()
        if not key:
            raise ConfigError(
                f"no key for the provider: the environment variable {self.variable} is not set",
                hint=self.how_to_set,
            )
        return _sendable(key, f"the key in {self.variable}")

    @property
    def place(self) -> Literal["environment", "keyring", ""]:
        """The place that the key is read from; empty: it is not set. May block on the keyring; raises `ConfigError` if that fails."""
        return "environment" if self._from_environment() else "keyring" if _from_keyring(self.variable) else ""

    def keep(self, key: str) -> None:
        """Keep a key in the keyring. Raise `ConfigError` if there is no keyring, or no HTTP header can carry the key."""
        _sendable(key, f"the key for {self.variable}")
        with _keyring(self.variable, "written") as keyring:
            keyring.set_password(KEYRING_SERVICE, self.variable, key)
        if _from_keyring(self.variable) != key:
            raise ConfigError(f"the keyring did not keep {self.variable}", hint=self._export)

    def remove(self) -> None:
        """Remove the key from the keyring. Raise `ConfigError` if it holds none or cannot be written."""
        if not _from_keyring(self.variable):
            raise ConfigError(f"the keyring holds no {self.variable}", hint="nearfar keys list shows the keys that are set, and where")
        with _keyring(self.variable, "written") as keyring:
            keyring.delete_password(KEYRING_SERVICE, self.variable)

    @property
    def _export(self) -> str:
        return f"export {self.variable}=... where the process starts"

    def _from_environment(self) -> str:
        return os.environ.get(self.variable, "").strip()

    def _read(self) -> str:
        return self._from_environment() or _from_keyring(self.variable)


def secret(variable: str) -> str:
    """Return the value of an environment variable, or of the keyring under the same name. Raises `ConfigError` if there is none."""
    stored = StoredKey(variable)
    if not stored.is_set():
        raise ConfigError(f"{variable} is not set", hint=stored.how_to_set)
    return stored.reveal()


class GivenKey:
    """A key that the program already holds."""

    def __init__(self, key: str) -> None:
        """Keep `key`. Raise `ConfigError` if no HTTP header can carry it."""
        self._key = _sendable(key, "the key")

    def __repr__(self) -> str:
        return "GivenKey(...)"

    def reveal(self) -> str:
        return self._key


def _sendable(key: str, what: str) -> str:
    # Refused here, because an HTTP library would quote the whole header in its error.
    if not key or not key.isascii() or not key.isprintable() or key != key.strip():
        raise ConfigError(f"{what} is empty, or holds characters that an HTTP header cannot carry", hint="copy the key again")
    withhold(key)
    return key


def _from_keyring(name: str) -> str:
    try:
        with _keyring(name, "read") as keyring:
            return (keyring.get_password(KEYRING_SERVICE, name) or "").strip()
    except _NoKeyring:  # as on most servers
        return ""


class _NoKeyring(ConfigError):
    """This machine has no keyring, or the package that reads it is not installed."""


@contextmanager
def _keyring(name: str, done: str) -> Iterator[ModuleType]:
    """Yield the keyring's module. Raise `_NoKeyring`, or `ConfigError` if it fails."""
    try:
        import keyring
        from keyring.errors import KeyringError, NoKeyringError
    except ImportError as error:
        raise _NoKeyring("the keyring needs the Python package keyring", hint="pip install 'nearfar[cloud]'") from error
    try:
        yield keyring
    except NoKeyringError as error:
        hint = f"export {name}=... where the process starts, or set up a keyring: https://pypi.org/project/keyring"
        raise _NoKeyring("this machine has no keyring", hint=hint) from error
    except (KeyringError, configparser.Error, ImportError, AttributeError, ValueError, OSError, RuntimeError) as error:
        # The last six for a backend or a configuration that PYTHON_KEYRING_BACKEND or keyringrc.cfg names and that is none, and for a user
        # who has no home folder.
        hint = f"unlock or correct it, or export {name}=..."
        raise ConfigError(f"the keyring could not be {done} for {name}: {type(error).__name__}", hint=hint) from error
