"""PROXY headers of both versions: what is read, what is refused, and that no byte of the client's is taken."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.proxy_header import HEADER_BYTES_MAX, BadProxyHeader, ProxyHeader, parse_proxy_header

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"

addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
ports = st.integers(0, 65_535)


def version_1(client: IPv4Address | IPv6Address, proxy_port: int = 443, client_port: int = 50_000) -> bytes:
    server = "198.51.100.7" if client.version == 4 else "2001:db8::7"
    return f"PROXY TCP{client.version} {client} {server} {client_port} {proxy_port}\r\n".encode()


def version_2(
    client: IPv4Address | IPv6Address | None, *, command: int = 1, transport: int = 1, tlvs: bytes = b""
) -> bytes:
    if client is None:
        family, ends = 0, b""
    else:
        family = 1 if client.version == 4 else 2
        ends = client.packed * 2 + struct.pack("!HH", 50_000, 443)
    fixed = struct.pack("!BBH", 0x20 | command, family << 4 | transport, len(ends) + len(tlvs))
    return SIGNATURE + fixed + ends + tlvs


@given(addresses, ports, ports, st.binary(max_size=60))
def test_version_1_names_the_client_and_ends_where_the_clients_bytes_begin(
    client: IPv4Address | IPv6Address, client_port: int, proxy_port: int, rest: bytes
) -> None:
    header = version_1(client, proxy_port, client_port)
    assert parse_proxy_header(header + rest) == ProxyHeader(str(client), len(header))


@given(addresses, st.binary(max_size=2_000), st.binary(max_size=60))
def test_version_2_names_the_client_and_ends_behind_its_tlvs(
    client: IPv4Address | IPv6Address, tlvs: bytes, rest: bytes
) -> None:
    header = version_2(client, tlvs=tlvs)
    assert parse_proxy_header(header + rest) == ProxyHeader(str(client), len(header))


@given(addresses, st.booleans())
def test_a_header_that_is_cut_anywhere_is_incomplete_and_never_wrong(
    client: IPv4Address | IPv6Address, text: bool
) -> None:
    header = version_1(client) if text else version_2(client, tlvs=b"\x04\x00\x01\x00")
    assert all(parse_proxy_header(header[:length]) is None for length in range(len(header)))


@given(st.binary(max_size=300))
@example(SIGNATURE)
@example(SIGNATURE + b"\x21\x11\xff\xff")
@example(b"PROXY \n")
@example(b"PROXY\r\n")
@example(b"PROXY  \r\n")
def test_any_bytes_are_a_header_incomplete_or_refused(data: bytes) -> None:
    for start in (b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21"):
        try:
            header = parse_proxy_header(start + data)
        except BadProxyHeader:
            continue
        if header is None:
            assert len(start + data) < HEADER_BYTES_MAX
        else:
            assert 15 <= header.length <= min(len(start + data), HEADER_BYTES_MAX)
            assert header.client is None or str(ip_address(header.client)) == header.client


@given(st.binary(min_size=HEADER_BYTES_MAX, max_size=HEADER_BYTES_MAX + 10))
def test_nobody_is_waited_for_beyond_the_longest_header(data: bytes) -> None:
    for start in (b"PROXY ", SIGNATURE + b"\x21\x11"):
        try:
            assert parse_proxy_header(start + data) is not None
        except BadProxyHeader:
            pass


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n",
        version_2(None, command=0, transport=0),  # HAProxy's own health checks
        version_2(ip_address("203.0.113.9"), command=0),
        version_2(None, transport=0),
        version_2(ip_address("203.0.113.9"), transport=2),  # datagrams are nobody's connection
        SIGNATURE + b"\x21\x31" + struct.pack("!H", 216) + bytes(216),  # a Unix socket
    ],
)
def test_a_proxy_that_speaks_for_itself_names_nobody(header: bytes) -> None:
    assert parse_proxy_header(header + b"GET") == ProxyHeader(None, len(header))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00",
        b"proxy TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
        b"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 -2\r\n",
        b"PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
        b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\xff\r\n",
        b"PROXY UNKNOWN" + b" " * 100,
        b"PROXY \r\n",
        SIGNATURE + b"\x11\x11\x00\x0c",  # version 1 of the binary form does not exist
        SIGNATURE + b"\x22\x11\x00\x0c",
        SIGNATURE + b"\x21\x41\x00\x0c",
        SIGNATURE + b"\x21\x13\x00\x0c",
        SIGNATURE + b"\x21\x11\x00\x0b",
        SIGNATURE + b"\x21\x21\x00\x23",
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(BadProxyHeader):
        parse_proxy_header(data)
