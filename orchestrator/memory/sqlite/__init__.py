"""The store's engine on SQLite: a file on the device."""

from typing import TYPE_CHECKING

from ....protocols.lazy import lazy_names
from .engine import SqliteEngine as SqliteEngine

if TYPE_CHECKING:
    from .recovering import Recovery as Recovery
    from .recovering import recover as recover

__getattr__ = lazy_names(__name__, {"Recovery": "recovering", "recover": "recovering"})
