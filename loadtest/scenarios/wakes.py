"""What waking costs: nothing for devices that are online, and little time for one that sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Final

import aiohttp
from aiohttp import web

from loadtest.accounts import Account
from loadtest.latency import Latencies
from loadtest.recorder import Recorder
from loadtest.run import Run, judged, merged
from loadtest.scenarios.cycle import closed_loop
from loadtest.swarm import Swarm, Traffic

SENDERS: Final = 4
SLEEPERS: Final = 400
WAKES_PER_S: Final = 20  # so that the worker is idle at almost every commit
PUSH_S_MAX: Final = 20.0


async def online_worker(run: Run) -> dict[str, Any]:
    """`cycle` for longer than the lease of a session: renewed or not, no device that is online may cost the worker.

    Run it with `--seconds` above the lease (heartbeat and slack, under two minutes by default).
    """
    result = await closed_loop(run, run.settings.devices, echo=False)
    cores = result["cpu"].get("worker", {}).get("cores")
    return merged(result, {"worker_cores": cores}, {"facts": {"worker, cores:": cores}})


async def wake_delay(run: Run) -> dict[str, Any]:
    """Sleeping devices get one message each; how long after its SEND the push request arrives at the receiver.

    The time of the commit itself is in it, so it is an upper bound for commit to push.
    """
    recorder = Recorder()
    accounts = await run.accounts(SENDERS + SLEEPERS)
    sleepers = accounts[SENDERS:]
    traffic = Traffic(payload_bytes=run.settings.payload_bytes, senders=(), recipients=range(len(accounts)))
    swarm = Swarm(accounts, run.server.endpoints, traffic, recorder)
    meter = run.meter()
    delays = Latencies()
    sent: dict[str, float] = {}
    pushed: set[str] = set()
    twice = 0

    async def push(request: web.Request) -> web.Response:
        nonlocal twice
        now, name = perf_counter(), request.match_info["name"]
        await request.read()
        if name in pushed:
            twice += 1
        else:
            delays.add(now - sent[name])
            pushed.add(name)
        return web.Response(status=204)

    try:
        async with _receiver(push) as url:
            await _routes(run.server.urls[0], sleepers, url)
            await swarm.connect(range(SENDERS))
            meter.start()
            for number, account in enumerate(sleepers):
                sent[str(number)] = perf_counter()
                swarm.send_many(swarm.devices[number % SENDERS], [account.device], timed=False)
                await asyncio.sleep(1 / WAKES_PER_S)
            end = perf_counter() + PUSH_S_MAX
            while len(pushed) < SLEEPERS and perf_counter() < end:
                await asyncio.sleep(0.01)
            used = meter.stop(SLEEPERS)
            await swarm.connect(range(SENDERS, len(accounts)))
            verdict = judged(swarm, recorder, drained=await swarm.drain())
    finally:
        swarm.close()
        run.forget_accounts()  # these have routes to a receiver that is gone
    verdict["ok"] = verdict["ok"] and len(pushed) == SLEEPERS
    return merged(
        {"devices": SLEEPERS, "payload": run.settings.payload_bytes, "wakes_per_s": WAKES_PER_S},
        {"pushed": len(pushed), "pushed_again": twice, "push_ms": delays.summary()},
        {"facts": {"SEND to push request, ms:": delays.summary(), "pushed:": len(pushed)}},
        verdict,
        {"cpu": used},
    )


@asynccontextmanager
async def _receiver(push: Any) -> AsyncIterator[str]:
    """A push gateway on a free loopback port; the server must list loopback in `push_private_networks_allowed`."""
    app = web.Application()
    app.router.add_post("/push/{name}", push)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/push"
    finally:
        await runner.cleanup()


async def _routes(server: str, accounts: Sequence[Account], url: str) -> None:
    async with aiohttp.ClientSession(server, connector=aiohttp.TCPConnector(limit=16)) as http:
        gate = asyncio.Semaphore(16)

        async def put(number: int, account: Account) -> None:
            route = {"provider": "gateway", "url": f"{url}/{number}"}
            headers = {"Authorization": f"Bearer {account.token}"}
            async with gate, http.put("/v1/push-route", json=route, headers=headers) as answer:
                answer.raise_for_status()

        await asyncio.gather(*(put(number, account) for number, account in enumerate(accounts)))
