"""Tools and plans chosen before a run read untrusted content."""

from collections.abc import Iterable

from ...protocols.messages import Value
from .naming import named_tools


class Chosen(Value):
    """The choices of agents and plans until then."""

    tools: tuple[str, ...] = ()
    """Tools that were called, or that a plan names."""
    plan: str = ""
    """The texts of plans."""

    def with_tools(self, names: Iterable[str]) -> "Chosen":
        """Add tools that were called."""
        more = sorted({*self.tools, *names})
        return self if len(more) == len(self.tools) else self.model_copy(update={"tools": tuple(more)})

    def with_plan(self, plan: str, tools: Iterable[str]) -> "Chosen":
        """Add a plan, and those of the tools that it names."""
        return self.with_tools(named_tools(plan, tools)).model_copy(update={"plan": f"{self.plan}\n{plan}".strip()})
