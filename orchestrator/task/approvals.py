"""The function of an app that approves tool calls."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from ...protocols import ApprovalRequest

Approver = Callable[[Sequence[ApprovalRequest]], Awaitable[Mapping[str, bool]]]
"""Decides about tool calls that need approval; returns, by the request's id, whether the call may run. A missing id means no."""
