"""The store on SQLite: a file on the device."""

from .engine import SqliteEngine as SqliteEngine
from .recovering import Recovery as Recovery
from .recovering import recover as recover
