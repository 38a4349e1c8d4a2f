"""What tools do to the world, done once: a ledger of calls, and what it offers to the tools themselves."""

from .running import effect_key, effect_transaction
from .transactions import EffectConnection

__all__ = ["EffectConnection", "effect_key", "effect_transaction"]
