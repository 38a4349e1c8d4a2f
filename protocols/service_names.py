"""Names that client and server of `AgentService` share, besides the protobuf messages."""

from .v1 import agent_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["AgentService"].full_name

ACCEPTED = (("nearfar-accepted", "1"),)
"""Initial metadata of every step: it tells the client that the server has the step, so that the step can be resumed."""
