"""`Value`, the base of all contract types."""

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """Base of all contract types: immutable, closed to unknown fields, and silent about its content in validation errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)
