"""Tests cannot leave the machine by accident."""

import socket

import pytest

TEST_NET = ("192.0.2.1", 80)  # reserved for documentation: nobody answers there


@pytest.mark.parametrize("connect", ["connect", "connect_ex"])
def test_a_socket_cannot_reach_another_machine(connect: str) -> None:
    with socket.socket() as opened, pytest.raises(PermissionError, match="without a network"):
        getattr(opened, connect)(TEST_NET)


def test_a_socket_reaches_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=10):
        connection, _ = server.accept()
        connection.close()
