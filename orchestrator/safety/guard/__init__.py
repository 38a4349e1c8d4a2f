"""The guard: which tool calls a model may make after it has read untrusted content, and where their arguments have to come from."""
