"""Read secrets from the environment or the keyring."""

from ...protocols import ConfigError
from ...protocols.secrets import StoredKey


def secret(variable: str) -> str:
    """What an environment variable, or the keyring under the same name, holds. Raises `ConfigError` where there is nothing."""
    stored = StoredKey(variable)
    if not stored.is_set():
        raise ConfigError(f"{variable} is not set", hint=stored.how_to_set)
    return stored.reveal()


def find_secret(variable: str) -> str | None:
    """The same where it may be absent."""
    return StoredKey(variable).find()
