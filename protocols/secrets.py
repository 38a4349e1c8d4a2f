"""Provider keys: read from the environment or the operating system's keyring when a step needs one, and never shown."""

import configparser
import os
from typing import Protocol

from . import ConfigError
from .redact import withhold

KEYRING_SERVICE = "nearfar"


class Key(Protocol):
    """Where a provider's key comes from. Its `repr` never holds the key."""

    def reveal(self) -> str:
        """The key itself. May block on the keyring. Raises `ConfigError` if there is none."""
        ...


class StoredKey:
    """A key in an environment variable, or under the same name in the keyring (service "nearfar")."""

    def __init__(self, variable: str) -> None:
        self.variable = variable

    def __repr__(self) -> str:
        return f"StoredKey({self.variable!r})"

    def is_set(self) -> bool:
        """Whether there is a key. May block on the keyring."""
        return bool(self._read())

    def find(self) -> str | None:
        """The secret where there is one. May block on the keyring."""
        return self._read() or None

    @property
    def how_to_set(self) -> str:
        """For people."""
        return f"export {self.variable}=..., or store it once: python -m keyring set {KEYRING_SERVICE} {self.variable}"

    def reveal(self) -> str:
        key = self._read()
        if not key:
            raise ConfigError(
                f"no key for the provider: the environment variable {self.variable} is not set",
                hint=self.how_to_set,
            )
        return _sendable(key, f"the key in {self.variable}")

    def _read(self) -> str:
        return os.environ.get(self.variable, "").strip() or _from_keyring(self.variable)


class GivenKey:
    """A key that the program already holds."""

    def __init__(self, key: str) -> None:
        """Raises `ConfigError` if no HTTP header can carry `key`."""
        self._key = _sendable(key, "the key")

    def __repr__(self) -> str:
        return "GivenKey(...)"

    def reveal(self) -> str:
        return self._key


def _sendable(key: str, what: str) -> str:
    # Refused here, because an HTTP library would quote the whole header in its error.
    if not key or not key.isascii() or not key.isprintable() or key != key.strip():
        raise ConfigError(f"{what} is empty, or holds characters that no HTTP header can carry", hint="copy the key again")
    withhold(key)
    return key


def _from_keyring(name: str) -> str:
    try:
        import keyring
        from keyring.errors import KeyringError, NoKeyringError
    except ImportError:
        return ""
    try:
        return (keyring.get_password(KEYRING_SERVICE, name) or "").strip()
    except NoKeyringError:  # as on most servers
        return ""
    except (KeyringError, configparser.Error, ImportError, AttributeError, ValueError, OSError) as error:
        # The last five for a backend or a configuration that PYTHON_KEYRING_BACKEND or keyringrc.cfg names and that is none.
        raise ConfigError(
            f"the keyring could not be read for {name}: {type(error).__name__}", hint=f"unlock or correct it, or export {name}=..."
        ) from error
