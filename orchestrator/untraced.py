"""Keeping tasks away from the tracing that LangChain brings along."""

from contextlib import AbstractContextManager


def untraced() -> AbstractContextManager[None]:
    """Keep LangSmith from hearing what runs inside.

    Variables that were set for another app (`LANGSMITH_TRACING`, `LANGCHAIN_TRACING_V2`) make LangGraph post the state of each graph
    to a server: prompts, memory and tool results, also those of private tasks.
    """
    from langsmith import tracing_context

    return tracing_context(enabled=False)
