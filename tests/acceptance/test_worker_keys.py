"""Rotating the key of push addresses, as an operator does it, with a worker as a process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime import keyring
from runtime.key_rings import Purpose
from store.instance import push_token_key_in_use
from tests.support.command import run
from tests.support.push_receiver import push_receiver
from tests.support.waiting import eventually
from tests.support.wakes import WorkerParts, worker_parts
from tests.support.worker_process import WorkerLab


@pytest.fixture
def lab(database: str, redis_url: str, tmp_path: Path) -> WorkerLab:
    return WorkerLab(database, redis_url, tmp_path)


@pytest.fixture
async def parts(database: str, redis_url: str, lab: WorkerLab) -> AsyncIterator[WorkerParts]:
    async with worker_parts(database, redis_url, seal=lab.seal) as made:
        yield made


async def test_an_old_push_token_key_is_not_needed_any_more_once_a_worker_has_run(
    lab: WorkerLab, parts: WorkerParts
) -> None:
    old = parts.seal.current_key_id
    async with push_receiver() as receiver:
        device = await parts.device(url=receiver.url)
        keyring.update(lab.secrets_dir, lambda ring: ring.rotate(Purpose.PUSH_TOKEN, 2))
        settings = {
            "MAILBOXD_POSTGRES_DSN": lab.dsn,
            "MAILBOXD_REDIS_URL": lab.redis_url,
            "MAILBOXD_SECRETS_DIR": str(lab.secrets_dir),
        }
        retire = ("admin", "keys", "retire", "push-token", str(old))
        refused = run(*retire, settings=settings)
        assert (refused.code, "a running worker seals them anew" in refused.err) == (1, True)
        async with lab.worker() as worker:

            async def not_needed() -> bool:
                return not await push_token_key_in_use(parts.stores.postgres, old)

            await eventually(not_needed, what="the route is sealed with the new key")
            assert await worker.metric("push_routes_resealed_total") == 1
        assert run(*retire, settings=settings).code == 0
        async with lab.worker():
            await parts.submit(device)
            await receiver.wait_for(1)
