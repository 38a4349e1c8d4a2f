"""Quoting foreign text in errors and logs: short, on one line, and without keys."""

import re

_SHOWN = 300
_KEYLIKE = re.compile(r"(?i)\b(?:sk|pk|rk|key)-[\w*.-]{6,}|\bAIza[\w-]{10,}|\bbearer\s+\S+|(?<=[?&]key=)[^&\s]+")


def quote(text: str, *, secrets: tuple[str, ...] = ()) -> str:
    """`text` without `secrets` and without anything that looks like a key, shortened to 300 characters."""
    for secret in filter(None, secrets):
        text = text.replace(secret, "[redacted]")
    text = _KEYLIKE.sub("[redacted]", text)
    text = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
