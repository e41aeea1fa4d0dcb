"""The full cycle in a closed loop: SEND, commit, SEND_ACK, MAILBOX_BATCH, ACK, commit, ACK_RESULT.

Each device has one SEND in flight to a random other device, and acks what it receives.
"""

from __future__ import annotations

from typing import Any

from loadtest.recorder import Recorder
from loadtest.run import Run, figures, judged, merged
from loadtest.swarm import Swarm, Traffic


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


async def closed_loop(run: Run, devices: int, *, echo: bool) -> dict[str, Any]:
    """Warm up, measure, drain, judge."""
    settings = run.settings
    recorder = Recorder()
    traffic = Traffic(
        payload_bytes=settings.payload_bytes, echo=echo, senders=range(devices), recipients=range(devices)
    )
    swarm = Swarm(await run.accounts(devices), run.server.endpoints, traffic, recorder)
    meter = run.meter()
    try:
        await swarm.connect()
        swarm.start()
        await swarm.warm_up(settings.warmup_s)
        meter.start()
        window, seconds = await swarm.measure(settings.seconds)
        used = meter.stop(window.confirmed)
        swarm.stop()
        drained = await swarm.drain()
        verdict = judged(swarm, recorder, drained=drained)
    finally:
        swarm.close()
    return merged(
        {"devices": devices, "payload": settings.payload_bytes, "echo": echo},
        figures(window, seconds),
        verdict,
        {"cpu": used},
    )
