"""Near agents: models that run on the user's own device."""
