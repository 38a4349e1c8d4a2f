"""Quoting foreign text in errors and logs: short, on one line, and without keys."""

import base64
import html
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

_withheld: Final[dict[str, re.Pattern[str]]] = {}


def withhold(key: str) -> None:
    """Show this key nowhere from now on: neither where foreign text is quoted, nor in the logs of the libraries that send it."""
    if len(key) < _SHORTEST or key in _withheld:
        return
    if not _withheld:
        for name in _TALKATIVE:
            logging.getLogger(name).addFilter(_Withholding())
    _withheld[key] = _pattern(key)


def quote(text: str) -> str:
    """`text` without the keys of this process and without anything that looks like one, shortened to 300 characters."""
    text = _KEYLIKE.sub(_REDACTED, _without_keys(text))
    text = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _pattern(key: str) -> re.Pattern[str]:
    """Return what finds the key as it is, and as JSON, an address, a web page, Python's `repr` or base64 spell it."""
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
    """Takes keys out of what is logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        record.msg, record.args = _without_keys(said), ()
        return True
