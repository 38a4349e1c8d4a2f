"""A stream of text in which placeholders are filled in as they come, in however many pieces."""

from collections.abc import Callable
from typing import Final

from .placeholders import Placeholders

Listener = Callable[[str], None]
"""Takes each piece of an agent's text as it streams."""
_LONGEST: Final = 64
"""Characters of a placeholder; what is longer is none."""
_OF_ADDRESSES: Final = "/\\:"


class OpenedText:
    """Passes pieces of text on; what may be the beginning of a placeholder waits until its end is there, or it is too long for one."""

    def __init__(self, placeholders: Placeholders, listener: Listener) -> None:
        self._placeholders = placeholders
        self._listener = listener
        self._held = ""

    def __call__(self, piece: str) -> None:
        if not len(self._placeholders):
            self._listener(piece)
            return
        text = self._held + piece
        cut = self._whole(text)
        self._held = text[cut:]
        self._pass_on(text[:cut])

    def close(self) -> None:
        """The text has ended."""
        self._pass_on(self._held)
        self._held = ""

    def _whole(self, text: str) -> int:
        """How much of the text can be passed on: not the beginning of a placeholder, nor of what may become an address."""
        last = "" if not text or text[-1].isspace() else text.rsplit(maxsplit=1)[-1]
        if any(mark in last for mark in _OF_ADDRESSES):
            return len(text) - len(last)
        begin = text.rfind("<")
        is_open = begin >= 0 and ">" not in text[begin:] and len(text) - begin < _LONGEST
        return begin if is_open else len(text)

    def _pass_on(self, text: str) -> None:
        if text:
            self._listener(self._placeholders.shown(text))
