"""Programs that measure; each is run by itself."""
