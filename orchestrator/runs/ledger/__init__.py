"""The idempotency ledger: tool calls with effects are recorded, so that none is made twice."""

from .running import effect_key, effect_transaction
from .transactions import EffectConnection

__all__ = ["EffectConnection", "effect_key", "effect_transaction"]
