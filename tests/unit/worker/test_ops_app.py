"""The worker's operations port."""

from __future__ import annotations

import re

import pytest
from aiohttp.test_utils import TestClient, TestServer

from runtime.clock import SystemClock
from runtime.metrics import Metrics
from runtime.supervise import Supervisor
from worker.ops_app import build_ops_app


async def _away() -> str | None:
    return "the database does not answer"


@pytest.mark.parametrize(
    ("path", "status"), [("/healthz", 200), ("/readyz", 503), ("/metrics", 200), ("/nothing", 404)]
)
async def test_every_answer_has_a_request_id_of_the_servers(path: str, status: int) -> None:
    app = build_ops_app(Metrics(), Supervisor(SystemClock()), _away, dict)
    async with TestClient(TestServer(app)) as client:
        ids = set()
        for _ in range(2):
            answer = await client.get(path, headers={"X-Request-Id": "mine"})
            assert answer.status == status
            ids.add(answer.headers["X-Request-Id"])
        assert len(ids) == 2
        assert all(re.fullmatch("[0-9a-f]{16}", name) for name in ids)


async def test_a_hint_needs_a_person_and_makes_nobody_unready() -> None:
    async def fine() -> str | None:
        return None

    app = build_ops_app(Metrics(), Supervisor(SystemClock()), fine, lambda: {"dead_letters": 2})
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/readyz")
        assert (answer.status, await answer.json()) == (200, {"status": "ready", "dead_letters": 2})
