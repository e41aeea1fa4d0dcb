"""One SEND to many devices: a group message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from loadtest.recorder import Recorder
from loadtest.run import Run, figures, judged, merged
from loadtest.swarm import Device, Swarm, Traffic

SENDERS: Final = 8


async def fan_out_64(run: Run) -> dict[str, Any]:
    """To 64 devices, 1 KB each."""
    return await fan_out(run, 64, 1_024)


async def fan_out_64_16k(run: Run) -> dict[str, Any]:
    """To 64 devices, 16 KB each."""
    return await fan_out(run, 64, 16_384)


async def fan_out_32_64k(run: Run) -> dict[str, Any]:
    """To 32 devices, 64 KB each."""
    return await fan_out(run, 32, 65_536)


async def fan_out(run: Run, recipients: int, payload_bytes: int) -> dict[str, Any]:
    """Eight senders with one such SEND in flight each, for `--seconds`; rates count envelopes."""
    recorder = Recorder()
    total = SENDERS + recipients
    traffic = Traffic(payload_bytes=payload_bytes, senders=(), recipients=range(SENDERS, total))
    accounts = await run.accounts(total)
    swarm = Swarm(accounts, run.server.endpoints, traffic, recorder)
    group = [account.device for account in accounts[SENDERS:]]
    meter = run.meter()
    try:
        await swarm.connect()
        senders = swarm.devices[:SENDERS]
        sending = asyncio.create_task(_keep_sending(swarm, senders, group), name="fan-out")
        await swarm.warm_up(min(run.settings.warmup_s, 2.0))
        meter.start()
        window, seconds = await swarm.measure(run.settings.seconds)
        used = meter.stop(window.confirmed)
        sending.cancel()
        await asyncio.wait((sending,))
        verdict = judged(swarm, recorder, drained=await swarm.drain())
    finally:
        swarm.close()
    shape = {"senders": SENDERS, "recipients": recipients, "payload": payload_bytes}
    return merged(shape, figures(window, seconds), verdict, {"cpu": used})


async def _keep_sending(swarm: Swarm, senders: Sequence[Device], group: Sequence[bytes]) -> None:
    while True:
        for device in senders:
            if not device.in_flight:
                swarm.send_many(device, group)
        await asyncio.sleep(0.001)
