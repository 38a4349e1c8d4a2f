"""SQLite and Postgres: one way to open, lock, migrate and recover a database."""
