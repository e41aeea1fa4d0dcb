"""Who is calling: nobody chooses his own address."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from gateway.client_address import client_address, is_loopback, is_trusted

PROXIES = (ip_network("10.0.0.0/8"), ip_network("2001:db8:1::/48"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("203.0.113.7", [], "203.0.113.7"),
        ("203.0.113.7", ["9.9.9.9"], "203.0.113.7"),  # no proxy: what it says does not count
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["9.9.9.9"], "9.9.9.9"),
        ("10.0.0.1", ["1.1.1.1, 9.9.9.9"], "9.9.9.9"),  # what the client wrote itself stands on the left
        ("10.0.0.1", ["1.1.1.1", "9.9.9.9"], "9.9.9.9"),
        ("10.0.0.1", ["1.1.1.1, 9.9.9.9, 10.2.3.4"], "9.9.9.9"),  # a chain of trusted proxies
        ("10.0.0.1", ["10.9.9.9"], "10.9.9.9"),
        ("10.0.0.1", ["9.9.9.9:51234"], "9.9.9.9"),
        ("10.0.0.1", ["[2001:db8:5::1]:443"], "2001:db8:5::/64"),
        ("10.0.0.1", ["garbage"], "10.0.0.1"),
        ("10.0.0.1", ["9.9.9.9, garbage"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["9.9.9.9"], "9.9.9.9"),
        ("2001:db8:1::9", ["2001:db8:7::1"], "2001:db8:7::/64"),
        ("2001:db8:7:0:1:2:3:4", [], "2001:db8:7::/64"),
        ("::1", [], "::1"),
        ("local", ["9.9.9.9"], "local"),
    ],
)
def test_the_nearest_untrusted_hop_counts(peer: str, forwarded: list[str], expected: str) -> None:
    assert client_address(peer, forwarded, PROXIES) == expected


def test_without_trusted_proxies_only_the_socket_counts() -> None:
    assert client_address("10.0.0.1", ["9.9.9.9"], ()) == "10.0.0.1"


def test_trusted_and_loopback() -> None:
    assert is_trusted("10.1.2.3", PROXIES)
    assert not is_trusted("11.1.2.3", PROXIES)
    assert not is_trusted("local", PROXIES)
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("203.0.113.7")
    assert not is_loopback("2001:db8:7::/64")
