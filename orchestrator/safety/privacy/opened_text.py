"""Stream a text with placeholders filled in, in however many pieces it comes."""

from collections.abc import Callable
from typing import Final

from .placeholders import Placeholders

Listener = Callable[[str], None]
"""Takes each piece of an agent's text as it streams."""
_LONGEST: Final = 64
"""Characters of a placeholder; what is longer is none."""


class OpenedText:
    """Passes pieces of text on up to the first placeholder. The rest waits for the end of the text.

    Later words decide what earlier ones are: `[x]: https://...` at the end makes an address of a label at the beginning.

    Args:
        before: returns what was displayed in front of this text.
        in_json: the text is JSON, whose strings cannot be told apart before it ends.
    """

    def __init__(self, placeholders: Placeholders, listener: Listener, *, before: Callable[[], str] = str, in_json: bool = False) -> None:
        self._placeholders = placeholders
        self._listener = listener
        self._before = before
        self._in_json = in_json
        self._passed = ""
        self._held = ""
        self._is_holding = False
        """A placeholder has come."""

    def __call__(self, piece: str) -> None:
        if not len(self._placeholders):
            self._passed += piece
            self._listener(piece)
            return
        text = self._held + piece
        cut = 0 if self._is_holding or self._in_json else self._plain(text)
        self._held = text[cut:]
        if cut:
            self._passed += text[:cut]
            self._listener(text[:cut])

    def close(self) -> None:
        """End the text: pass the rest on, with placeholders filled in."""
        if self._held:
            before = self._before() + self._passed
            self._listener(self._placeholders.shown(self._held, in_json=self._in_json, before=before))
        self._held = ""

    def _plain(self, text: str) -> int:
        """Return how much of the text can be passed on: up to a placeholder, or what may become one."""
        first = self._placeholders.first_in(text)
        if first is not None:
            self._is_holding = True
            return first
        begin = text.rfind("<")
        is_open = begin >= 0 and ">" not in text[begin:] and len(text) - begin < _LONGEST
        return begin if is_open else len(text)
