"""Ports are checked before anything is started on them."""

from __future__ import annotations

import socket

import pytest

from mailboxd.ports import answers_ready, choose_ports
from mailboxd.terminal import CommandError
from tests.support.http_stub import answering


def test_port_zero_gives_different_free_ports() -> None:
    ports = choose_ports("127.0.0.1", 0, 5, "--port")
    assert len(set(ports)) == 5
    assert all(port > 0 for port in ports)


def test_a_port_in_use_is_named_with_the_option_that_changes_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            CommandError, match=rf"127\.0\.0\.1:{port} \(Address already in use\); choose another --ops-port"
        ):
            choose_ports("127.0.0.1", port, 1, "--ops-port")


@pytest.mark.parametrize("host", ["192.0.2.1", "no host"])
def test_an_address_that_is_not_this_machines_is_a_matter_of_the_host(host: str) -> None:
    with pytest.raises(CommandError, match=rf"cannot listen on {host}.*; choose another --host$"):
        choose_ports(host, 0, 1, "--port")


def test_a_port_beyond_the_last_is_refused() -> None:
    with pytest.raises(CommandError, match="65536 is not a port"):
        choose_ports("127.0.0.1", 65_535, 2, "--port")


@pytest.mark.parametrize(
    ("answer", "ready"),
    [(b"HTTP/1.1 200 OK\r\n\r\n", True), (b"HTTP/1.1 503 X\r\n\r\n", False), (b"", False), (b"junk\r\n", False)],
)
async def test_only_a_200_means_ready(answer: bytes, ready: bool) -> None:
    async with answering(answer) as port:
        assert await answers_ready("127.0.0.1", port) is ready


async def test_nobody_there_means_not_ready() -> None:
    (port,) = choose_ports("127.0.0.1", 0, 1, "--port")
    assert await answers_ready("127.0.0.1", port) is False
