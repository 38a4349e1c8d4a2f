"""LangChain's side of Nearfar: a `Hybrid` as a chat model."""
