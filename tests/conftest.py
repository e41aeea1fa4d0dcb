"""Fixtures for every test: see tests/support."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import structlog

from tests.support.blocking import BlockingRunner
from tests.support.clock import FakeClock
from tests.support.services import Services

REQUIRE_ALL = os.environ.get("MAILBOXD_TEST_REQUIRE_ALL") == "1"

# What `mailboxd init` leaves, as far as SQL needs it: one row, the default policy, no signing key.
_INSTANCE = """
INSERT INTO instances (instance_id, policy, restore_epoch) VALUES (gen_random_uuid(), '{}'::jsonb, gen_random_uuid())
"""


def pytest_configure() -> None:
    # Where the tests run in the background these may be ignored, and every program that they start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # What code logs goes into pytest's captured output: one plain line, no search through local variables.
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["level", "event"]),
        ],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stdout),
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and MAILBOXD_TEST_REQUIRE_ALL=1 allows no skip: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def blocking() -> Iterator[BlockingRunner]:
    runner = BlockingRunner()
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def services(blocking: BlockingRunner) -> Iterator[Services]:
    """One PostgreSQL and one Valkey for the whole run."""
    running = Services(blocking, os.environ)
    yield running
    running.close()


@pytest.fixture
def database(services: Services) -> Iterator[str]:
    """The DSN of a database of this test's own, with the newest schema and an instance row."""
    template = services.template("instance", services.migrated_template(), _INSTANCE)
    dsn = services.create(template)
    yield dsn
    services.drop(dsn)


@pytest.fixture
def new_database(services: Services) -> Iterator[Callable[[], str]]:
    """Makes further databases like `database`, as many as a test (or each example of a property) needs."""
    template = services.template("instance", services.migrated_template(), _INSTANCE)
    made: list[str] = []

    def make() -> str:
        made.append(services.create(template))
        return made[-1]

    yield make
    for dsn in made:
        services.drop(dsn)


@pytest.fixture
def uninitialised_database(services: Services) -> Iterator[str]:
    """The newest schema without an instance row: what `mailboxd init` finds."""
    dsn = services.create(services.migrated_template())
    yield dsn
    services.drop(dsn)


@pytest.fixture
def empty_database(services: Services) -> Iterator[str]:
    """No schema at all: what `mailboxd migrate apply` finds."""
    dsn = services.create()
    yield dsn
    services.drop(dsn)


@pytest.fixture
def redis_url(services: Services) -> str:
    """The URL of a Valkey database with nothing in it."""
    return services.empty_redis()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
