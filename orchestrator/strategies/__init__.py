"""The hybrid architectures: each a small LangGraph graph over shared nodes."""
