"""The full cycle in a closed loop: SEND, commit, SEND_ACK, MAILBOX_BATCH, ACK, commit, ACK_RESULT.

Each device has one SEND in flight to a random other device, and acks what it receives.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from loadtest.accounts import renew
from loadtest.cleanup_cost import CleanupCost, said
from loadtest.recorder import Recorder
from loadtest.run import Run, figures, joined, judged, merged
from loadtest.swarm import Swarm, Traffic

RENEW_EVERY_S: Final = 480.0
SETTLED_KEPT: Final = 200_000  # entries remembered in a long run, many seconds of them


async def cycle(run: Run) -> dict[str, Any]:
    """All devices, no echo."""
    return await closed_loop(run, run.settings.devices, echo=False)


async def cycle_echo(run: Run) -> dict[str, Any]:
    """The same with an echo entry for every SEND, which the sender acks as well."""
    return await closed_loop(run, run.settings.devices, echo=True)


async def light_2(run: Run) -> dict[str, Any]:
    """Two devices: the latency of an idle server."""
    return await closed_loop(run, 2, echo=False)


async def light_10(run: Run) -> dict[str, Any]:
    """Ten devices."""
    return await closed_loop(run, 10, echo=False)


async def cycle_long(run: Run) -> dict[str, Any]:
    """For `--seconds 900` and the like, with acked rows deleted after a minute: `parts` has every minute's figures.

    Deletion, outbox, vacuum and checkpoints take their share here; a rate that falls or a latency that grows shows.
    What clean-up costs is measured over the whole time.
    """
    dsn, worker = run.server.postgres_dsn, run.server.pids.get("worker")
    measured = asyncio.create_task(
        closed_loop(run, run.settings.devices, echo=False, part_s=60.0, settled_kept=SETTLED_KEPT), name="cycle"
    )
    if dsn is None or worker is None:
        return await measured
    cost = CleanupCost(dsn, worker)
    try:
        await cost.start()
        await asyncio.wait((measured,), timeout=run.settings.warmup_s + run.settings.seconds)
        cleanup = await cost.stop()
    finally:
        if not measured.done():
            await asyncio.wait((measured,))
    result = await measured
    rates = ", ".join(
        f"{part['confirmed_per_s']:,.0f} (p99 {part['latency_ms']['p99']} ms)" for part in result["parts"]
    )
    return merged(result, {"cleanup": cleanup, "facts": {"clean-up:": said(cleanup), "each minute:": rates}})


async def closed_loop(
    run: Run, devices: int, *, echo: bool, part_s: float | None = None, settled_kept: int | None = None
) -> dict[str, Any]:
    """Warm up, measure (in parts of `part_s`), drain, judge."""
    settings = run.settings
    recorder = Recorder(settled_kept=settled_kept)
    traffic = Traffic(
        payload_bytes=settings.payload_bytes, echo=echo, senders=range(devices), recipients=range(devices)
    )
    accounts = await run.accounts(devices)
    swarm = Swarm(accounts, run.server.endpoints, traffic, recorder)
    meter = run.meter()
    renewing = asyncio.create_task(_keep_tokens_fresh(run.server.urls[0], swarm), name="renew-tokens")
    count = max(1, round(settings.seconds / part_s)) if part_s else 1
    try:
        await swarm.connect()
        swarm.start()
        await swarm.warm_up(settings.warmup_s)
        meter.start()
        measured = [await swarm.measure(settings.seconds / count) for _ in range(count)]
        window = joined([window for window, _ in measured])
        used = meter.stop(window.confirmed)
        swarm.stop()
        verdict = judged(swarm, recorder, drained=await swarm.drain())
    finally:
        renewing.cancel()
        await asyncio.wait((renewing,))
        swarm.close()
    return merged(
        {"devices": devices, "payload": settings.payload_bytes, "echo": echo},
        figures(window, sum(seconds for _, seconds in measured)),
        {"parts": [figures(*part) for part in measured]} if part_s else {},
        verdict,
        {"cpu": used},
    )


async def _keep_tokens_fresh(url: str, swarm: Swarm) -> None:
    """Tokens live 15 minutes; sessions go on with new ones."""
    while True:
        await asyncio.sleep(RENEW_EVERY_S)
        await renew(url, swarm.accounts)
        swarm.reauthenticate()
