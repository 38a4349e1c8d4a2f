"""What `nearfar doctor` says of one thing."""

from typing import Literal

from ...protocols.messages import Value

Status = Literal["ok", "absent", "expiring", "risky", "broken"]


class Finding(Value):
    """One thing that was looked at."""

    area: str
    name: str
    status: Status
    detail: str
    advice: str = ""
    """What to do about it; empty where there is nothing to do."""
