"""What `mailboxd up` does when PostgreSQL or Valkey has ended and does not start again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mailboxd.embedded import EmbeddedError
from mailboxd.up import SERVICES_PAUSE_MAX_S, _keep_services
from tests.support.clock import FakeClock, settle


class Services:
    """Both have ended; PostgreSQL starts only while there is `room`."""

    def __init__(self) -> None:
        self.room = False
        self.away = {"postgres", "valkey"}
        self.tries: list[str] = []
        self.told: list[str] = []

    def ended(self) -> tuple[str, ...]:
        return tuple(sorted(self.away))

    async def start_again(self, name: str) -> None:
        self.tries.append(name)
        if name == "postgres" and not self.room:
            raise EmbeddedError("No space left on device")
        self.away.remove(name)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def services(clock: FakeClock) -> AsyncIterator[Services]:
    services: Any = Services()
    keeping = asyncio.create_task(_keep_services(services, clock, lambda: None, services.told.append))
    await settle()
    yield services
    keeping.cancel()
    await asyncio.wait((keeping,))


async def test_a_service_that_cannot_start_for_an_hour_starts_when_it_can(services: Services, clock: FakeClock) -> None:
    await clock.advance(3_600)
    assert services.tries.count("postgres") > 3_600 / SERVICES_PAUSE_MAX_S - 10
    services.room = True
    await clock.advance(SERVICES_PAUSE_MAX_S)
    assert not services.away
    assert services.told == ["postgres ended; starting it again", "valkey ended; starting it again"], "each once"


async def test_one_that_cannot_start_does_not_hold_up_the_other(services: Services, clock: FakeClock) -> None:
    await clock.advance(1)
    assert services.away == {"postgres"}


async def test_it_does_not_try_without_pause(services: Services, clock: FakeClock) -> None:
    await clock.advance(60)
    assert services.tries.count("postgres") < 15
