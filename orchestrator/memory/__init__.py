"""The memory that a user's devices share: items that are private by construction, searchable, and kept in step."""
