"""`Arm`: a configuration that `auto` can choose, as in a multi-armed bandit."""

import json
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from ...protocols.messages import Value
from .modes import Strategy

Knobs = Mapping[str, JsonValue]

RESERVED: Final = ("auto", "mode", "sensitivity", "strategy")
"""Keys of the policy that the user decides, and that `auto` never changes."""


class Arm(Value):
    """A strategy and what differs from the default policy, in the shape of the `[policy]` section."""

    strategy: Strategy
    knobs: Knobs = {}

    @property
    def key(self) -> str:
        """Return an equal text for an equal configuration."""
        return f"{self.strategy} {json.dumps(self.knobs, sort_keys=True)}" if self.knobs else str(self.strategy)
