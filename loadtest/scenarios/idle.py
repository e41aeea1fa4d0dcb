"""Connected and silent: what a connection costs that does nothing."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from loadtest.descriptors import allow_descriptors
from loadtest.processes import descriptors
from loadtest.recorder import Recorder
from loadtest.run import Run, judged, merged
from loadtest.swarm import Swarm, Traffic

WATCHED_S: Final = 20.0


async def idle(run: Run) -> dict[str, Any]:
    """`--devices` silent connections in one gateway: memory per connection, CPU over 20 s, none lost."""
    count = run.settings.devices
    allow_descriptors(count)
    recorder = Recorder()
    traffic = Traffic(payload_bytes=run.settings.payload_bytes, senders=(), recipients=(0,))
    meter = run.meter()
    gateway = "gateway" if "gateway" in run.server.pids else None
    # Before the devices are registered: what that leaves free in the process would hide a part of the connections.
    before = meter.resident_bytes(gateway) if gateway else 0
    swarm = Swarm(await run.accounts(count), run.server.endpoints, traffic, recorder, tls=run.server.tls)
    try:
        await swarm.connect()
        await asyncio.sleep(2.0)
        after = meter.resident_bytes(gateway) if gateway else 0
        files = {"load_generator": descriptors([os.getpid()])}
        if gateway:
            files[gateway] = descriptors(run.server.pids[gateway])
        meter.start()
        await asyncio.sleep(WATCHED_S)
        used = meter.stop(0)
        verdict = judged(swarm, recorder, drained=True)
    finally:
        swarm.close()
    each = round((after - before) / count)
    return merged(
        {"devices": count, "resident_bytes_per_connection": each, "descriptors": files},
        {"facts": {"bytes resident per connection:": each, "gateway MiB:": round(after / 2**20, 1)}},
        verdict,
        {"cpu": used},
    )
