"""What `up` makes of signals: SIGHUP reads a certificate again or, from a terminal that is gone, ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mailboxd.up import Stop
from tests.support.waiting import eventually


@contextmanager
def listening(stop: Stop) -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    try:
        with stop.on_signals():
            yield
    finally:
        signal.signal(signal.SIGHUP, before)


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


async def test_with_a_certificate_a_hang_up_reads_it_again() -> None:
    stop = Stop()
    stop.may_reload = True
    with listening(stop):
        hang_up()
        await eventually(stop.reload.is_set)
    assert not stop.requested.is_set()


async def test_without_one_it_ends_as_by_sigterm() -> None:
    stop = Stop()
    with listening(stop):
        hang_up()
        await eventually(stop.requested.is_set)
        hang_up()
        await eventually(stop.urgent.is_set)
    assert not stop.reload.is_set()


async def test_the_terminals_end_is_the_end_also_with_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()
    stop.may_reload = True
    monkeypatch.setattr(os, "isatty", lambda _: True)
    with listening(stop):
        hang_up()
        await eventually(stop.reload.is_set)
        assert not stop.requested.is_set()
        monkeypatch.setattr(os, "isatty", lambda descriptor: descriptor == 2)
        hang_up()
        await eventually(stop.requested.is_set)


@pytest.mark.parametrize("certificate", [False, True])
async def test_under_nohup_no_hang_up_ends_it(monkeypatch: pytest.MonkeyPatch, certificate: bool) -> None:
    stop = Stop()
    stop.may_reload = certificate
    heard = []
    react = stop._hang_up
    monkeypatch.setattr(stop, "_hang_up", lambda: (react(), heard.append(1)))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr(os, "isatty", lambda _: True)
    try:
        with stop.on_signals():
            monkeypatch.setattr(os, "isatty", lambda _: False)
            hang_up()
            await eventually(lambda: bool(heard))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (stop.requested.is_set(), stop.reload.is_set()) == (False, certificate)
