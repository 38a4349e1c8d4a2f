"""The store's engine on Postgres with pgvector, for hubs; several hubs may share one database."""

from .engine import PostgresEngine as PostgresEngine
