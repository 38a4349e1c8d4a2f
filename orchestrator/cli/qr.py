"""QR codes in a terminal."""

from collections.abc import Sequence
from importlib.util import find_spec

from rich.text import Text

from ...protocols import ConfigError

_QUIET_ZONE = 4
"""Modules of white around the code, as ISO/IEC 18004 asks for."""
_BLOCKS = {(0, 0): " ", (1, 0): "\N{UPPER HALF BLOCK}", (0, 1): "\N{LOWER HALF BLOCK}", (1, 1): "\N{FULL BLOCK}"}


def check_installed() -> None:
    """Raise `ConfigError` if the package that makes QR codes is missing."""
    if find_spec("segno") is None:
        raise ConfigError("drawing a QR code needs the Python package segno", hint="pip install 'nearfar[hub]'")


def qr_code(text: str) -> Text:
    """`text` as a QR code, two modules to a character, in black on white whatever the terminal's own colours are."""
    import segno

    rows = [list(row) for row in segno.make(text, error="l", micro=False).matrix_iter(border=_QUIET_ZONE)]
    if len(rows) % 2:
        rows.append([0] * len(rows[0]))
    lines = ("".join(_block(pair) for pair in zip(upper, lower, strict=True)) for upper, lower in zip(rows[::2], rows[1::2], strict=True))
    return Text("\n".join(lines), style="#000000 on #ffffff", no_wrap=True)


def _block(pair: Sequence[int]) -> str:
    upper, lower = pair
    return _BLOCKS[int(upper), int(lower)]
