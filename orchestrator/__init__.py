"""Strategies, router, tools and the command line: what turns agents into an application.

The names below are loaded when they are first used, so that the command line answers without loading LangGraph.
"""

from typing import TYPE_CHECKING

from ..protocols.lazy import lazy_names

if TYPE_CHECKING:
    from .config import Config, load_config
    from .effects.running import effect_key, effect_transaction
    from .events import TaskEvent
    from .hybrid import Hybrid
    from .memory.store import MemoryStore
    from .policy import Mode, Strategy
    from .results import Attempt, Call, Result, ToolOutcome
    from .selection.decision import SelectionDecision
    from .selection.settings import AutoPolicy
    from .strategies.minions_policy import MinionsPolicy
    from .strategies.subtasks_policy import SubtasksPolicy
    from .strategies.supervision import Supervision, Trigger
    from .task import Policy
    from .task_memory import TaskMemory
    from .tools import Tool, tool

__all__ = [
    "Attempt",
    "AutoPolicy",
    "Call",
    "Config",
    "Hybrid",
    "MemoryStore",
    "MinionsPolicy",
    "Mode",
    "Policy",
    "Result",
    "SelectionDecision",
    "Strategy",
    "SubtasksPolicy",
    "Supervision",
    "TaskEvent",
    "TaskMemory",
    "Tool",
    "ToolOutcome",
    "Trigger",
    "effect_key",
    "effect_transaction",
    "load_config",
    "tool",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Attempt": "results",
        "AutoPolicy": "selection.settings",
        "Call": "results",
        "Config": "config",
        "Hybrid": "hybrid",
        "MemoryStore": "memory.store",
        "MinionsPolicy": "strategies.minions_policy",
        "Mode": "policy",
        "Policy": "task",
        "Result": "results",
        "SelectionDecision": "selection.decision",
        "Strategy": "policy",
        "SubtasksPolicy": "strategies.subtasks_policy",
        "Supervision": "strategies.supervision",
        "TaskEvent": "events",
        "TaskMemory": "task_memory",
        "Tool": "tools",
        "ToolOutcome": "results",
        "Trigger": "strategies.supervision",
        "effect_key": "effects.running",
        "effect_transaction": "effects.running",
        "load_config": "config",
        "tool": "tools",
    },
)
