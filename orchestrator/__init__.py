"""Strategies, router, tools and the command line: what turns agents into an application.

The names below are loaded when they are first used, so that the command line answers without loading LangGraph.
"""

from typing import TYPE_CHECKING

from ..protocols.lazy import lazy_names

if TYPE_CHECKING:
    from .compose.config import Config, load_config
    from .hybrid.hybrid import Hybrid
    from .memory.in_tasks import TaskMemory
    from .memory.store import MemoryStore
    from .runs.ledger.running import effect_key, effect_transaction
    from .task.auto_decision import SelectionDecision
    from .task.events import TaskEvent
    from .task.modes import Mode, Strategy
    from .task.results import Attempt, Call, Result, ToolOutcome
    from .task.sections.auto import AutoConfig
    from .task.sections.minions import MinionsConfig
    from .task.sections.subtasks import SubtasksConfig
    from .task.sections.supervision import SupervisionConfig, Trigger
    from .task.task import Policy
    from .task.tools import Tool, tool

__all__ = [
    "Attempt",
    "AutoConfig",
    "Call",
    "Config",
    "Hybrid",
    "MemoryStore",
    "MinionsConfig",
    "Mode",
    "Policy",
    "Result",
    "SelectionDecision",
    "Strategy",
    "SubtasksConfig",
    "SupervisionConfig",
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
        "Attempt": "task.results",
        "AutoConfig": "task.sections.auto",
        "Call": "task.results",
        "Config": "compose.config",
        "Hybrid": "hybrid.hybrid",
        "MemoryStore": "memory.store",
        "MinionsConfig": "task.sections.minions",
        "Mode": "task.modes",
        "Policy": "task.task",
        "Result": "task.results",
        "SelectionDecision": "task.auto_decision",
        "Strategy": "task.modes",
        "SubtasksConfig": "task.sections.subtasks",
        "SupervisionConfig": "task.sections.supervision",
        "TaskEvent": "task.events",
        "TaskMemory": "memory.in_tasks",
        "Tool": "task.tools",
        "ToolOutcome": "task.results",
        "Trigger": "task.sections.supervision",
        "effect_key": "runs.ledger.running",
        "effect_transaction": "runs.ledger.running",
        "load_config": "compose.config",
        "tool": "task.tools",
    },
)
