"""Dollars, joules and memory of a run.

* Dollars: the far side's tokens at its own price; where that is unknown or 0, at the reference price of `cloud/prices.toml`. At the
    reference price every prompt token counts in full: providers grant a discount for cached prefixes from 1,024 tokens on, which few
  prompts
  here reach.
* Joules: 2 x parameters x tokens / efficiency (arXiv 2605.30102, appendix A.1), for the near side; far energy is not counted.
* KV bytes: the largest context that the near side held, times what its model keeps per token.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from ....protocols import AgentCard, Prices, Side, Usage
from ....protocols.messages import Value
from ...task.results import Call

FLOP_PER_JOULE: Final = 1e11
"""Efficiency of the near side's processor: about half of what a laptop GPU of 2024 reaches at its best. It scales all joules alike, so
comparisons between configurations do not depend on it."""

EXECUTE: Final = "execute"
"""The role of the agent that works on the task, in every strategy."""


class Reference(Value):
    """The price of a real model, for far agents that have none or cost nothing."""

    model: str
    prices: Prices

    @property
    def name(self) -> str:
        return f"list price of {self.model}, {self.prices.as_of}"


def dollars(calls: Iterable[Call], card: AgentCard | None, reference: Reference) -> tuple[float | None, str]:
    """Return the far side's dollars and the source of the price; None where a call failed after it had spent uncounted tokens."""
    far = [call for call in calls if call.side is Side.FAR]
    if card is not None and card.prices is not None and not card.prices.is_free:
        known = [call.dollars for call in far if call.dollars is not None]
        total = float(sum(known)) if len(known) == len(far) else None
        return total, f"{card.prices.source}, {card.prices.as_of}"
    if any(call.dollars is None and call.error is not None and call.usage.total_tokens == 0 for call in far):
        return None, reference.name
    usages = (Usage(input_tokens=call.usage.input_tokens, output_tokens=call.usage.output_tokens) for call in far)
    return float(sum(reference.prices.dollars(usage) for usage in usages)), reference.name


def joules(usage: Usage, parameters: int | None) -> float | None:
    """Estimate the energy of the near side; None if the number of weights is unknown. Tokens read from a prefix cache count too."""
    if usage.total_tokens == 0:
        return 0.0
    return None if parameters is None else 2 * parameters * usage.total_tokens / FLOP_PER_JOULE


def peak_kv_bytes(calls: Sequence[Call], bytes_per_token: int | None) -> int | None:
    """Return the KV cache of the near side's longest call; None if its model does not say what it keeps per token."""
    near = [call.usage.total_tokens for call in calls if call.side is Side.NEAR]
    if not near:
        return 0
    return None if bytes_per_token is None else max(near) * bytes_per_token


def context_tokens(calls: Iterable[Call]) -> tuple[int, ...]:
    """Return the tokens that the executor read and wrote on each turn."""
    return tuple(call.usage.total_tokens for call in calls if call.role == EXECUTE)
