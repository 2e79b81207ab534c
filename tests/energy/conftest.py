import socket

import pytest


@pytest.fixture
def no_network(monkeypatch):
    """Any attempt to reach something over a network fails the test."""

    def refuse(*arguments, **_):
        raise AssertionError(f"a socket was opened: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
