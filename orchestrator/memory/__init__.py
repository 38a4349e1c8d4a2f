"""What agents on all devices of a user remember: items that are private by construction, searchable, and kept in step between devices."""
