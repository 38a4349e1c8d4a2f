"""Drafting of tool calls: most of a call can be guessed, and the model checks a guessed run of tokens in one pass.

`Drafting` is a worker's, `Drafter` a step's, and a `Walk` makes one draft. What is drafted never changes the output: a token counts only
where the step's own `Generation` chooses it from the logits of that pass. After ToolSpec (arXiv 2604.13519), with runs of several sources
joined into one draft, and with its length chosen by what a pass costs on this machine.
"""

from .drafter import Drafter, Drafting
from .payoff import Eager, Pass, Payoff

__all__ = ["Drafter", "Drafting", "Eager", "Pass", "Payoff"]
