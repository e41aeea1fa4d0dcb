"""An open loop: messages leave at fixed moments whether or not earlier ones were answered.

Latency counts from the moment a message was planned for, so a server that stalls cannot hide it by being sent less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

from loadtest.recorder import Recorder
from loadtest.run import Run, figures, joined, judged, merged
from loadtest.swarm import Device, Swarm, Traffic

TICK_S: Final = 0.002
PARTS: Final = 4  # the measured time in this many windows, to see growth


async def paced(run: Run) -> dict[str, Any]:
    """`--rate` messages per second over all devices for `--seconds`; `parts` has the latency of each quarter.

    `growth_ms`: by how much the last quarter's p99 lies above twice the first's; what piles up shows there.
    """
    settings = run.settings
    recorder = Recorder()
    everybody = range(settings.devices)
    traffic = Traffic(payload_bytes=settings.payload_bytes, senders=everybody, recipients=everybody)
    swarm = Swarm(await run.accounts(settings.devices), run.server.endpoints, traffic, recorder)
    meter = run.meter()
    try:
        await swarm.connect()
        pacing = asyncio.create_task(pace(swarm, settings.rate_per_s, swarm.devices), name="pace")
        await swarm.warm_up(settings.warmup_s)
        meter.start()
        started = perf_counter()
        parts = [(await swarm.measure(settings.seconds / PARTS))[0] for _ in range(PARTS)]
        seconds = perf_counter() - started
        used = meter.stop(sum(part.confirmed for part in parts))
        pacing.cancel()
        await asyncio.wait((pacing,))
        drained = await swarm.drain()
        verdict = judged(swarm, recorder, drained=drained)
    finally:
        swarm.close()
    whole = figures(joined(parts), seconds)
    first, last = parts[0].delivery.percentile_ms(0.99) or 0.0, parts[-1].delivery.percentile_ms(0.99) or 0.0
    return merged(
        {"devices": settings.devices, "payload": settings.payload_bytes, "rate_per_s": settings.rate_per_s},
        whole,
        {"kept_pace": round(whole["confirmed_per_s"] / settings.rate_per_s, 4)},
        {"growth_ms": round(max(0.0, last - 2 * first), 2)},
        {"parts": [part.delivery.summary() for part in parts]},
        verdict,
        {"cpu": used},
    )


async def pace(swarm: Swarm, rate_per_s: int, senders: Sequence[Device]) -> None:
    """Send at `rate_per_s` from one device after the other until cancelled."""
    loop_start, sent = perf_counter(), 0
    while True:
        due = int((perf_counter() - loop_start) * rate_per_s)
        while sent < due:
            swarm.send_from(senders[sent % len(senders)], due=loop_start + sent / rate_per_s)
            sent += 1
        await asyncio.sleep(TICK_S)
