"""No client reaches inside: every way of naming an inner address is refused, and a name is resolved once."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.push.address_guard import AddressGuard, AddressRefused, ResolveFailed, is_public

PUBLIC = "93.184.216.34"


class Resolver:
    """Answers each question with the next of its answers; remembers how often it was asked."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(answer, OSError):
            raise answer
        return answer


def guard(*answers: Sequence[str] | OSError, allowed: str = "") -> AddressGuard:
    networks = [ipaddress.ip_network(text) for text in allowed.split()]
    return AddressGuard(networks, resolver=Resolver(*(answers or ([PUBLIC],))))


REFUSED = [
    "0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.1.2.3", "169.254.169.254", "172.16.0.1", "172.31.255.255",
    "192.0.0.1", "192.0.2.1", "192.168.1.1", "198.18.0.1", "203.0.113.9", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1", "2001::1", "2001:db8::1", "2002:7f00:1::1", "3fff::1", "fc00::1", "fd12:3456::1", "fe80::1",
    "fec0::1", "ff02::1", "100::1",
]  # fmt: skip


@pytest.mark.parametrize("address", REFUSED)
async def test_an_inner_address_is_refused_by_name_and_as_a_literal(address: str) -> None:
    literal = f"[{address}]" if ":" in address else address
    for url in ("https://push.example/x", f"https://{literal}/x"):
        with pytest.raises(AddressRefused):
            await guard([address]).judge(url)


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::8.8.8.8"])
async def test_a_public_address_is_taken(address: str) -> None:
    endpoint = await guard([address]).judge("https://push.example/x?y=z")
    assert (endpoint.host, endpoint.port) == ("push.example", 443)
    assert [ipaddress.ip_address(text) for text in endpoint.addresses] == [ipaddress.ip_address(address)]


async def test_a_name_is_resolved_once_and_inner_addresses_among_its_answers_are_left_out() -> None:
    resolver = Resolver([PUBLIC, "127.0.0.1"], ["127.0.0.1"])
    endpoint = await AddressGuard((), resolver=resolver).judge("https://rebinding.example/")
    assert endpoint.addresses == (PUBLIC,)
    assert resolver.asked == ["rebinding.example"]


@pytest.mark.parametrize(
    "url",
    [
        "http://push.example/", "ftp://push.example/", "push.example", "https://", "https:///x", "",
        "https://user@push.example/", "https://user:pass@push.example/", "https://push.example:0/",
        "https://push.example:99999/", "https://push.exa mple/", "https://push.example\\@127.0.0.1/", "https://[::1/",
        "https://pu\u017fh.example/", "https://push.example/\n", "file:///etc/passwd", "gopher://push.example/",
    ],
)  # fmt: skip
async def test_what_is_not_a_plain_https_url_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused):
        await guard().judge(url)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "0177.0.0.1", "localhost"])
async def test_old_spellings_of_loopback_are_judged_by_what_they_resolve_to(host: str) -> None:
    with pytest.raises(AddressRefused):
        await AddressGuard(()).judge(f"https://{host}/")


async def test_a_listed_network_is_allowed_there_plain_http_too_and_nowhere_else() -> None:
    listed = guard(["10.1.2.3", PUBLIC], allowed="10.1.0.0/16 fd00::/8")
    assert (await listed.judge("http://inner.example:8080/")).addresses == ("10.1.2.3",)
    assert (await listed.judge("https://inner.example/")).addresses == ("10.1.2.3", PUBLIC)
    with pytest.raises(AddressRefused):
        await guard(["10.2.2.3"], allowed="10.1.0.0/16").judge("https://inner.example/")
    with pytest.raises(AddressRefused):
        await guard([PUBLIC], allowed="10.1.0.0/16").judge("http://outer.example/")
    assert (await guard(["::ffff:10.1.2.3"], allowed="10.1.0.0/16").judge("http://inner.example/")).addresses


@pytest.mark.parametrize("answer", [OSError("no such name"), ["not an address"], []])
async def test_no_answer_is_trouble_or_refusal_never_a_connection(answer: Sequence[str] | OSError) -> None:
    with pytest.raises(ResolveFailed if isinstance(answer, OSError) else AddressRefused):
        await guard(answer).judge("https://push.example/")


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_in_any_wrapping_is_as_public_as_itself(address: ipaddress.IPv4Address) -> None:
    public = is_public(address)
    assert is_public(ipaddress.IPv6Address(f"::ffff:{address}")) is public
    assert is_public(ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) + int(address))) is public
    assert not is_public(ipaddress.IPv6Address((0x2002 << 112) + (int(address) << 80)))
