"""Names that client and server of `AgentService` share beside its protobuf messages."""

from .v1 import agent_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["AgentService"].full_name

ACCEPTED = (("nearfar-accepted", "1"),)
"""Initial metadata of every step: the client learns that the server has it, so that the step can be resumed."""
