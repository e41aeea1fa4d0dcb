"""What stands before the first request: PROXY headers, TLS handshakes, a certificate that is exchanged meanwhile."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway import acceptor
from loadtest.certificate import self_signed
from protocol.frames import Ping, Pong
from tests.support.gateways import LOCAL, GatewayLab, LocalGateway
from tests.support.raw_client import RawClient
from tests.support.waiting import eventually

GET = "GET /v1/instance HTTP/1.1\nHost: x\n\n"
BEHIND = {"trusted_proxies": "127.0.0.1", "proxy_protocol": True}
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def text_header(client: str) -> bytes:
    return f"PROXY TCP4 {client} 198.51.100.7 50000 443\r\n".encode()


def binary_header(client: str) -> bytes:
    ends = socket.inet_aton(client) + socket.inet_aton("198.51.100.7") + (50_000).to_bytes(2, "big") + b"\x01\xbb"
    return SIGNATURE + b"\x21\x11" + (len(ends) + 4).to_bytes(2, "big") + ends + b"\x04\x00\x01\x00"


async def through_proxy(gateway: LocalGateway, header: bytes, context: ssl.SSLContext | None = None) -> RawClient:
    """A connection that begins with the header, and then with TLS where there is a context."""
    client = await gateway.connect()
    client.send_raw(header)
    if context is not None:
        await client.writer.start_tls(context, server_hostname="localhost")
    return client


async def is_dropped(client: RawClient) -> bool:
    """Whether the server ends the connection without a byte."""
    with suppress(ConnectionError):
        async with asyncio.timeout(10):
            return await client.reader.read() == b""
    return True


class TestProxyHeader:
    @pytest.fixture
    async def behind(self, lab: GatewayLab) -> AsyncIterator[LocalGateway]:
        await lab.set_policy('{"connections_per_ip": 1}')
        async with lab.gateway(**BEHIND) as gateway:
            yield gateway

    @pytest.mark.parametrize("header", [text_header, binary_header])
    @pytest.mark.parametrize("tls", [False, True])
    async def test_both_doors_know_the_client_that_the_proxy_names(
        self, lab: GatewayLab, tmp_path: Path, header: Any, tls: bool
    ) -> None:
        await lab.set_policy('{"connections_per_ip": 1}')
        settings: dict[str, Any] = dict(BEHIND)
        context = None
        if tls:
            certificate, key = self_signed(tmp_path)
            settings |= {"tls_certificate": certificate, "tls_key": key}
            context = ssl.create_default_context(cafile=str(certificate))
        async with lab.gateway(**settings) as gateway:
            one = await through_proxy(gateway, header("203.0.113.1"), context)
            assert (await one.upgrade()).status == 101
            await one.hello((await lab.device()).token)
            await one.caught_up()
            other = await through_proxy(gateway, header("203.0.113.2"), context)
            assert (await other.request(GET)).status == 200
            for taken in ("203.0.113.1", "203.0.113.2"):
                again = await through_proxy(gateway, header(taken), context)
                assert (await again.upgrade()).status == 429
                again = await through_proxy(gateway, header(taken), context)
                assert (await again.request(GET)).status == 429
            third = await through_proxy(gateway, header("203.0.113.3"), context)
            assert (await third.request(GET)).status == 200

    async def test_calls_over_http_are_counted_for_the_client_that_is_named(self, lab: GatewayLab) -> None:
        await lab.set_policy('{"submit_rate_per_ip": 1, "submit_burst_per_ip": 64}')
        async with lab.gateway(**BEHIND) as gateway:
            one = await through_proxy(gateway, text_header("203.0.113.1"))
            assert [(await one.request(GET)).status for _ in range(80)].count(429) >= 10
            other = await through_proxy(gateway, text_header("203.0.113.2"))
            assert (await other.request(GET)).status == 200

    async def test_what_a_client_behind_it_writes_of_itself_is_not_believed(self, behind: LocalGateway) -> None:
        first = await through_proxy(behind, text_header("203.0.113.1"))
        assert (await first.upgrade(headers={"X-Forwarded-For": "203.0.113.8"})).status == 101
        second = await through_proxy(behind, text_header("203.0.113.1"))
        assert (await second.upgrade(headers={"X-Forwarded-For": "203.0.113.9"})).status == 429

    async def test_a_proxy_that_speaks_for_itself_is_served_as_such(self, behind: LocalGateway) -> None:
        for header in (b"PROXY UNKNOWN\r\n", SIGNATURE + b"\x20\x00\x00\x00"):
            client = await through_proxy(behind, header)
            assert (await client.request(GET)).status == 200
            # Its word on whom it forwards for counts, as it does without the PROXY protocol.
            client = await through_proxy(behind, header)
            address = f"203.0.113.{len(header)}"
            assert (await client.upgrade(headers={"X-Forwarded-For": address})).status == 101

    async def test_a_header_may_come_in_pieces_or_with_what_follows_it(self, behind: LocalGateway) -> None:
        for number, header in enumerate((text_header("203.0.113.1"), binary_header("203.0.113.2"))):
            pieces = await behind.connect()
            for at in range(len(header)):
                pieces.send_raw(header[at : at + 1])
                await pieces.writer.drain()
            assert (await pieces.upgrade()).status == 101, number
        whole = await behind.connect()
        whole.send_raw(text_header("203.0.113.3") + GET.replace("\n", "\r\n").encode())
        assert (await whole.http_answer()).status == 200

    async def test_a_trusted_proxy_that_sends_none_is_not_answered(self, behind: LocalGateway) -> None:
        for start in (GET.replace("\n", "\r\n").encode(), b"PROXY TCP4 nonsense\r\n", b"\x16\x03\x01", b"\r\n\r\nX"):
            client = await behind.connect()
            client.send_raw(start)
            assert await is_dropped(client)
        leaver = await behind.connect()
        leaver.send_raw(b"PROXY TC")
        leaver.writer.write_eof()
        assert await is_dropped(leaver)
        await eventually(lambda: behind.gateway.limits.connections == 0, what="nothing is counted any more")
        assert behind.gateway.services.metrics.refused.labels(reason="proxy_header")._value.get() == 5

    async def test_a_header_that_never_ends_is_cut_off(
        self, behind: LocalGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(acceptor, "PROXY_HEADER_S", 0.2)
        for start in (b"", b"PROXY TCP4 203.0.113.1 ", SIGNATURE + b"\x21\x11\x0f\xf0"):
            client = await behind.connect()
            client.send_raw(start)
            assert await is_dropped(client)
        await eventually(lambda: behind.gateway.limits.connections == 0, what="nothing is counted any more")

    async def test_nobody_else_is_believed(self, lab: GatewayLab) -> None:
        """Neither by default, nor with trusted proxies alone, nor from an address that is none of them."""
        await lab.set_policy('{"connections_per_ip": 2}')
        for settings in (
            {},
            {"trusted_proxies": "127.0.0.1"},
            {"trusted_proxies": "192.0.2.1", "proxy_protocol": True},
        ):
            async with lab.gateway(**settings) as gateway:
                for header in (text_header("203.0.113.1"), binary_header("203.0.113.2")):
                    client = await gateway.connect()
                    client.send_raw(header)
                    assert (await client.request(GET)).status == 400
                    client.cut()
                await eventually(lambda: gateway.gateway.limits.connections == 0, what="they are gone")
                client = await gateway.connect()
                assert (await client.request(GET)).status == 200  # without one all is as ever


class TestTls:
    @pytest.fixture
    def identity(self, tmp_path: Path) -> tuple[Path, Path]:
        return self_signed(tmp_path)

    async def test_who_never_speaks_tls_counts_and_is_cut_off(
        self, lab: GatewayLab, identity: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(acceptor, "TLS_HANDSHAKE_S", 0.3)
        async with lab.gateway(tls_certificate=identity[0], tls_key=identity[1]) as gateway:
            limits = gateway.gateway.limits
            silent = [await gateway.connect() for _ in range(3)]
            await eventually(lambda: limits.connections == 3, what="they count from the first moment")
            for client in silent:
                assert await is_dropped(client)
            await eventually(lambda: limits.connections == 0, what="they are gone")

    async def test_beyond_all_connections_not_even_a_handshake_begins(
        self, lab: GatewayLab, identity: tuple[Path, Path]
    ) -> None:
        async with lab.gateway(tls_certificate=identity[0], tls_key=identity[1], connections_max=1) as gateway:
            limits = gateway.gateway.limits
            silent = [await gateway.connect() for _ in range(102)]  # one, and the hundred that may hear a refusal
            await eventually(lambda: limits.overrun, what="all places are taken")
            assert await is_dropped(await gateway.connect())
            for client in silent[:2]:
                client.cut()
            await eventually(lambda: limits.connections == 100, what="they are gone")
            context = ssl.create_default_context(cafile=str(identity[0]))
            client = await gateway.connect(ssl=context, server_hostname="localhost")
            assert (await client.request(GET)).status == 503

    async def test_one_address_has_so_many_handshakes_at_the_same_time(
        self, lab: GatewayLab, identity: tuple[Path, Path]
    ) -> None:
        await lab.set_policy('{"connections_per_ip": 2}')
        async with lab.gateway(tls_certificate=identity[0], tls_key=identity[1]) as gateway:
            silent = [await gateway.connect() for _ in range(2)]
            await eventually(lambda: gateway.gateway.limits.connections == 2, what="they are on their way in")
            assert await is_dropped(await gateway.connect())
            silent[0].cut()
            await eventually(lambda: gateway.gateway.limits.connections == 1, what="one has left")
            context = ssl.create_default_context(cafile=str(identity[0]))
            # Who is through takes no place of those on their way in, and the answer beyond the limit is still 429.
            clients = [await gateway.connect(ssl=context, server_hostname="localhost") for _ in range(3)]
            assert [(await client.upgrade()).status for client in clients] == [101, 101, 429]

    async def test_without_free_files_it_accepts_again_later(
        self, lab: GatewayLab, identity: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refusals = [errno.EMFILE, errno.ENFILE]

        class Starved(socket.socket):
            def accept(self) -> Any:
                if refusals:
                    raise OSError(refusals.pop(), "too many open files")
                return super().accept()

        monkeypatch.setattr(acceptor, "NO_FILES_PAUSE_S", 0.05)
        monkeypatch.setattr(acceptor.socket, "socket", Starved)
        async with lab.gateway(tls_certificate=identity[0], tls_key=identity[1]) as gateway:
            context = ssl.create_default_context(cafile=str(identity[0]))
            client = await gateway.connect(ssl=context, server_hostname="localhost")
            assert (await client.request(GET)).status == 200
            assert refusals == []

    async def test_stopping_leaves_nobody_on_the_way_in(self, lab: GatewayLab, identity: tuple[Path, Path]) -> None:
        async with lab.gateway(tls_certificate=identity[0], tls_key=identity[1]) as gateway:
            silent = await RawClient.connect(LOCAL, gateway.port)
            await eventually(lambda: gateway.gateway.limits.connections == 1, what="it is on its way in")
        try:
            assert await is_dropped(silent)
        finally:
            silent.cut()

    async def test_a_new_certificate_is_for_new_connections_and_the_old_ones_live(
        self, lab: GatewayLab, identity: tuple[Path, Path], tmp_path: Path
    ) -> None:
        certificate, key = identity
        async with lab.gateway(tls_certificate=certificate, tls_key=key) as gateway:
            old = ssl.create_default_context(cafile=str(certificate))
            client = await gateway.connect(ssl=old, server_hostname="localhost")
            assert (await client.upgrade()).status == 101
            await client.hello((await lab.device()).token)
            await client.caught_up()

            self_signed(tmp_path)
            new = ssl.create_default_context(cafile=str(certificate))
            gateway.gateway.reload()
            with pytest.raises(ssl.SSLCertVerificationError):
                await gateway.connect(ssl=old, server_hostname="localhost")
            fresh = await gateway.connect(ssl=new, server_hostname="localhost")
            assert (await fresh.request(GET)).status == 200
            client.send(Ping(1))
            assert (await client.find(Pong)).t == 1

    @pytest.mark.parametrize("broken", ["empty", "garbage", "another key", "no certificate", "no key"])
    async def test_a_certificate_that_cannot_be_used_leaves_the_old_one_and_is_told(
        self,
        lab: GatewayLab,
        identity: tuple[Path, Path],
        tmp_path: Path,
        broken: str,
        capsys: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        certificate, key = identity
        context = ssl.create_default_context(cafile=str(certificate))
        async with lab.gateway(tls_certificate=certificate, tls_key=key) as gateway:
            match broken:
                case "empty":
                    certificate.write_bytes(b"")
                case "garbage":
                    certificate.write_bytes(b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n")
                case "another key":
                    (tmp_path / "other").mkdir()
                    key.write_bytes(self_signed(tmp_path / "other")[1].read_bytes())
                case "no certificate":
                    certificate.unlink()
                case _:
                    key.unlink()
            gateway.gateway.reload()
            client = await gateway.connect(ssl=context, server_hostname="localhost")
            assert (await client.request(GET)).status == 200
            assert gateway.gateway.services.metrics.tls_reloads.labels(outcome="failed")._value.get() == 1
        assert "the old one stays" in caplog.text + capsys.readouterr().out

    async def test_without_a_certificate_there_is_nothing_to_reload(self, gateway: LocalGateway) -> None:
        gateway.gateway.reload()
        assert (await (await gateway.connect()).request(GET)).status == 200
