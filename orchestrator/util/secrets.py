"""Read secrets from the environment or the keyring."""

from ...protocols import ConfigError
from ...protocols.secrets import StoredKey


def secret(variable: str) -> str:
    """Return the value of an environment variable, or of the keyring under the same name. Raises `ConfigError` if there is none."""
    stored = StoredKey(variable)
    if not stored.is_set():
        raise ConfigError(f"{variable} is not set", hint=stored.how_to_set)
    return stored.reveal()


def find_secret(variable: str) -> str | None:
    """Return the value of an environment variable, or of the keyring under the same name; None if there is none."""
    return StoredKey(variable).find()
