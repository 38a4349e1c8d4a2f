"""SQLite files: how they are opened, written by one connection and read by many, and their errors."""
