"""Quoting foreign text in errors and logs: short, on one line, and without keys."""

import logging
import re
from typing import Final

_SHOWN = 300
_REDACTED: Final = "[redacted]"
_KEYLIKE = re.compile(r"(?i)\b(?:sk|pk|rk|key)-[\w*.-]{6,}|\bAIza[\w-]{10,}|\bbearer\s+\S+|(?<=[?&]key=)[^&\s]+")
_SHORTEST: Final = 8
"""Characters of a key; what is shorter stands in the place of one, as "none" does for servers that want none."""
_TALKATIVE: Final = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy", "httpcore.socks")
"""Loggers that repeat what a server says, which may be the key that it was sent."""

_withheld: Final[set[str]] = set()


def withhold(key: str) -> None:
    """Show this key nowhere from now on: neither where foreign text is quoted, nor in the logs of the libraries that send it."""
    if len(key) < _SHORTEST or key in _withheld:
        return
    if not _withheld:
        for name in _TALKATIVE:
            logging.getLogger(name).addFilter(_Withholding())
    _withheld.add(key)


def quote(text: str) -> str:
    """`text` without the keys of this process and without anything that looks like one, shortened to 300 characters."""
    text = _KEYLIKE.sub(_REDACTED, _without_keys(text))
    text = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _without_keys(text: str) -> str:
    for key in _withheld:
        text = text.replace(key, _REDACTED)
    return text


class _Withholding(logging.Filter):
    """Takes keys out of what is logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        record.msg, record.args = _without_keys(said), ()
        return True
