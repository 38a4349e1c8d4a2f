"""Secrets that stand in a configuration: found, so that the file is refused.

Such a file is copied, backed up, shown to colleagues and committed. Secrets belong into the environment or the keyring of the operating
system; the file names their variables.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from .agents import how_to_set, usual_variable
from .config_keys import fields_at

_VARIABLE: Final = "_variable"
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_SECRET_WORDS: Final = re.compile(
    r"(?i)api_?keys?|keys?|token|secrets?|passwords?|passwd|passphrase|pwd|credentials?|bearer|auth|authorization"
)


@dataclass(frozen=True, slots=True)
class LiteralSecret:
    """One secret, without the secret itself."""

    path: tuple[str, ...]
    """The keys that lead to it."""
    advice: str
    """The text to write in the secret's place."""


def literal_secrets(document: Mapping[str, object], root: type[BaseModel]) -> Iterator[LiteralSecret]:
    """Yield the secrets in a configuration: values under a key that sounds like one and is not known, and values that look like a
    secret."""
    for path, value in _texts(document, ()):
        end = max((place for place, part in enumerate(path) if not part.isdigit()), default=0)
        section, key = path[:end], path[end]
        by_name = bool(value) and _is_secret(key) and key not in fields_at(root, section, _provider(document, section))
        if by_name or _holds_secret(value):
            yield LiteralSecret(path[: end + 1], _advice(document, root, section, key, value))


def _texts(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield all strings with their paths, at any depth."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, (*path, str(key)))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _texts(inner, (*path, str(position)))


def _is_secret(key: str) -> bool:
    return not key.endswith(_VARIABLE) and any(map(_SECRET_WORDS.fullmatch, _WORDS.findall(key)))


def _holds_secret(value: str) -> bool:
    # Here, as commands without a configuration need none of it.
    from ..safety.privacy.detection.keys import KEYS

    return any(detector.find(value) for detector in KEYS)


def _advice(document: Mapping[str, object], root: type[BaseModel], section: tuple[str, ...], key: str, value: str) -> str:
    """Which key of the section names a variable, and which one to use."""
    fields = fields_at(root, section, provider := _provider(document, section))
    options = [name for name in fields if name.endswith(_VARIABLE)]
    if not options:
        instead = (
            "make it with `nearfar serve token add`, for the file that `tokens` names" if "tokens" in fields else "nothing here needs one"
        )
        return f"a secret must not stand in the file: remove it; {instead}"
    option = key if key in options else _fitting(options, key, value)
    usual = usual_variable(provider) if option == "key_variable" else fields[option].default
    made = "_".join(("nearfar", *section, option.removesuffix(_VARIABLE))).upper()
    variable = usual if isinstance(usual, str) else re.sub(r"\W", "_", made, flags=re.ASCII)
    return f'a secret must not stand in the file: write {option} = "{variable}" in its place, and {how_to_set(variable)}'


def _fitting(options: Sequence[str], key: str, value: str) -> str:
    """Return the option that resembles the written key most."""
    wanted = "postgres" if value.startswith("postgres") else "token" if "token" in key.lower() else "key"
    return next((option for option in options if option.startswith(wanted)), options[0])


def _provider(document: Mapping[str, object], section: tuple[str, ...]) -> str:
    """Return the provider that a section for a far agent names; empty if it names none."""
    inner: object = document
    for part in section:
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    provider = inner.get("provider") if isinstance(inner, Mapping) else None
    return provider if isinstance(provider, str) else ""
