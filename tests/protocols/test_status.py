"""What a failed call of gRPC stands for."""

import grpc
import pytest

from nearfar.protocols import InternalError, NearfarError, Unavailable
from nearfar.protocols.status import from_rpc_error


@pytest.mark.parametrize(("details", "expected"), [("Internal error from Core", Unavailable), ("division by zero", InternalError)])
def test_a_connection_that_breaks_while_it_is_written_to_is_no_defect_of_the_other_side(details: str, expected: type[NearfarError]) -> None:
    nothing = grpc.aio.Metadata()
    error = from_rpc_error(grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, details))
    assert type(error) is expected
