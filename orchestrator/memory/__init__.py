"""The memory that a user's devices share: items that are private by default, searchable, and synchronised."""
