"""Fixtures for all tests of the memory store."""

from postgres_server import postgres_database, postgres_server

__all__ = ["postgres_database", "postgres_server"]
