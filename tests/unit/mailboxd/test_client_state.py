"""Which server `send` and `listen` talk to."""

from __future__ import annotations

import pytest

from mailboxd.client_state import DEFAULT_URL, server_url
from mailboxd.terminal import CommandError


@pytest.mark.parametrize(
    "url", ["", "localhost", "localhost:8080", "ftp://localhost", "http://", "https:///v1", "ws://a"]
)
def test_what_is_no_servers_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(CommandError, match=f"is no server's address; --url takes one such as {DEFAULT_URL}$"):
        server_url(url, None)


@pytest.mark.parametrize("url", ["http://localhost", "https://mail.example.org:8443/base", "http://[::1]:8080"])
def test_a_servers_address_is_taken_as_given(url: str) -> None:
    assert server_url(url, None) == url


def test_without_one_it_is_the_server_of_up() -> None:
    assert server_url(None, None) == DEFAULT_URL
