"""The store on SQLite: a file on the device."""

from .engine import SqliteEngine as SqliteEngine
