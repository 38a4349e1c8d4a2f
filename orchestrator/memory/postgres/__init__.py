"""The store's engine on Postgres with pgvector: for hubs, of which several may use it together."""

from .engine import PostgresEngine as PostgresEngine
