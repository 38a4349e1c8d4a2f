"""The one place where configuration becomes agents, and where the orchestrator meets `device` and `cloud`."""
