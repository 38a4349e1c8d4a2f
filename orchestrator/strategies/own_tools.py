"""The tools that the shipped models know: those of the generated worlds that they are trained on."""

from collections.abc import Mapping, Sequence
from typing import Final

from ...protocols import AgentCard, ToolSpec, Unsupported

WORLD_TOOLS: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "search": {"search": frozenset({"query"}), "open": frozenset({"title", "section"})},
    "apps": {
        "find_contact": frozenset({"name"}),
        "add_contact": frozenset({"name", "phone"}),
        "delete_contact": frozenset({"name"}),
        "find_event": frozenset({"title"}),
        "add_event": frozenset({"title", "day", "hour"}),
        "move_event": frozenset({"event", "day", "hour"}),
        "cancel_event": frozenset({"event"}),
        "find_mails": frozenset({"sender"}),
        "read_mail": frozenset({"mail"}),
        "send_mail": frozenset({"to", "text"}),
        "delete_mail": frozenset({"mail"}),
        "find_note": frozenset({"title"}),
        "add_note": frozenset({"title", "text"}),
        "delete_note": frozenset({"title"}),
        "pay": frozenset({"person", "amount"}),
        "request_payment": frozenset({"person", "amount"}),
    },
}
"""The parameters of each tool of the worlds that a shipped model's card may name."""
_HINT: Final = 'name a real model, such as near="/models/qwen.gguf"; nearfar models pull gets one'


def require_own_tools(card: AgentCard, tools: Sequence[ToolSpec]) -> None:
    """Raise `Unsupported` where a model that knows generated worlds only is given a tool that is none of theirs.

    A tool is one of theirs by its name and its parameters.
    """
    worlds = [] if card.world is None else card.world.split(", ")
    if not worlds or not set(worlds) <= set(WORLD_TOOLS):
        return
    known = {name: parameters for world in worlds for name, parameters in WORLD_TOOLS[world].items()}
    foreign = [tool.name for tool in tools if known.get(tool.name) != frozenset(_parameters(tool))]
    if foreign:
        knows = f"a demonstration model that knows nothing but the tools of its generated worlds ({card.world})"
        raise Unsupported(f"{card.name} is {knows}: it cannot use {', '.join(foreign)}", hint=_HINT)


def _parameters(tool: ToolSpec) -> Sequence[str]:
    properties = tool.parameters.get("properties")
    return list(properties) if isinstance(properties, dict) else []
