"""Mail that waited while a device was away: how long it takes to hand it over and get it acked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

from loadtest.latency import Latencies
from loadtest.recorder import Recorder
from loadtest.run import Run, judged, merged
from loadtest.scenarios.paced import pace
from loadtest.swarm import Device, Swarm, SwarmFailed, Traffic
from protocol.limits import SEND_ENVELOPES_MAX, WINDOW_BYTES_MAX, WINDOW_ENTRIES_MAX

ONE_MAILBOX: Final = 10_000
MANY_DEVICES: Final = 1_000
EACH: Final = 100
BESIDE_RATE_PER_S: Final = 500
BESIDE_DEVICES: Final = 50
FILL_SENDERS: Final = 8
FILL_S_MAX: Final = 120.0


async def backlog_one(run: Run) -> dict[str, Any]:
    """10,000 envelopes for one device: `drain_s` from connecting until the last ACK is answered."""
    recorder = Recorder()
    accounts = await run.accounts(FILL_SENDERS + 1)
    traffic = Traffic(
        payload_bytes=run.settings.payload_bytes,
        senders=(),
        recipients=range(FILL_SENDERS + 1),
        window_entries=WINDOW_ENTRIES_MAX,
        window_bytes=WINDOW_BYTES_MAX,
    )
    swarm = Swarm(accounts, run.server.endpoints, traffic, recorder)
    meter = run.meter()
    waiting = FILL_SENDERS  # the last device is the one that was away
    try:
        await swarm.connect(range(FILL_SENDERS))
        started = perf_counter()
        await fill(swarm, [accounts[waiting].device] * ONE_MAILBOX)
        fill_s = perf_counter() - started
        meter.start()
        started = perf_counter()
        device = await swarm.open(waiting)
        swarm.devices.append(device)
        await _until_acked(recorder, ONE_MAILBOX)
        drain_s = perf_counter() - started
        used = meter.stop(ONE_MAILBOX)
        verdict = judged(swarm, recorder, drained=await swarm.drain())
    finally:
        swarm.close()
    return merged(
        {"envelopes": ONE_MAILBOX, "payload": run.settings.payload_bytes},
        {"drain_s": round(drain_s, 3), "delivered_per_s": round(ONE_MAILBOX / drain_s, 1)},
        {"facts": {"drained and acked in s:": round(drain_s, 3), "filled in s:": round(fill_s, 3)}},
        verdict,
        {"cpu": used},
    )


async def backlog_many(run: Run) -> dict[str, Any]:
    """1,000 devices with 100 envelopes each come at once, beside 500 messages/s of others: login to `caught_up`."""
    recorder = Recorder()
    accounts = await run.accounts(BESIDE_DEVICES + MANY_DEVICES)
    beside, away = range(BESIDE_DEVICES), range(BESIDE_DEVICES, BESIDE_DEVICES + MANY_DEVICES)
    traffic = Traffic(payload_bytes=run.settings.payload_bytes, senders=beside, recipients=beside)
    swarm = Swarm(accounts, run.server.endpoints, traffic, recorder)
    meter = run.meter()
    logins = Latencies()
    try:
        await swarm.connect(beside)
        await fill(swarm, [accounts[index].device for _ in range(EACH) for index in away])
        others = list(swarm.devices)
        pacing = asyncio.create_task(pace(swarm, BESIDE_RATE_PER_S, others), name="pace")
        await swarm.warm_up(1.0)
        meter.start()
        started = perf_counter()
        returned = await asyncio.gather(*(_login(swarm, index, logins) for index in away))
        all_back_s = perf_counter() - started
        used = meter.stop(MANY_DEVICES * EACH)
        during = swarm.new_window()
        pacing.cancel()
        await asyncio.wait((pacing,))
        swarm.devices = [*others, *returned]
        verdict = judged(swarm, recorder, drained=await swarm.drain(60.0))
    finally:
        swarm.close()
    beside_per_s = round(during.confirmed / all_back_s, 1)
    facts = {"login to caught_up, ms:": logins.summary(), "all back in s:": round(all_back_s, 3)}
    return merged(
        {"devices": MANY_DEVICES, "envelopes_each": EACH, "beside_per_s": BESIDE_RATE_PER_S},
        {"caught_up_ms": logins.summary(), "all_caught_up_s": round(all_back_s, 3)},
        {"beside_confirmed_per_s": beside_per_s},
        {"latency_ms": during.delivery.summary(), "send_ack_ms": during.send_ack.summary()},
        {"facts": {**facts, "confirmed a second beside them:": beside_per_s}},
        verdict,
        {"cpu": used},
    )


async def fill(swarm: Swarm, recipients: Sequence[bytes]) -> None:
    """Send one envelope to each of `recipients` (in SENDs of 64) and wait until all are confirmed."""
    chunks = [recipients[at : at + SEND_ENVELOPES_MAX] for at in range(0, len(recipients), SEND_ENVELOPES_MAX)]
    swarm.new_window()
    end = perf_counter() + FILL_S_MAX
    for number, chunk in enumerate(chunks):
        sender = swarm.devices[number % len(swarm.devices)]
        while len(sender.in_flight) >= 4:
            await asyncio.sleep(0.002)
            _no_refusals(swarm, end)
        swarm.send_many(sender, chunk, timed=False)
    while any(device.in_flight for device in swarm.devices):
        await asyncio.sleep(0.005)
        _no_refusals(swarm, end)


async def _login(swarm: Swarm, index: int, logins: Latencies) -> Device:
    started = perf_counter()
    device = await swarm.open(index)
    await device.ready
    logins.add(perf_counter() - started)
    return device


async def _until_acked(recorder: Recorder, entries: int) -> None:
    end = perf_counter() + FILL_S_MAX
    while recorder.acked_entries < entries:
        if perf_counter() > end:
            raise SwarmFailed(f"only {recorder.acked_entries} of {entries} were acked")
        await asyncio.sleep(0.001)


def _no_refusals(swarm: Swarm, end: float) -> None:
    if swarm.refusals or swarm.disconnects:
        raise SwarmFailed(f"filling: {dict(swarm.refusals)} {dict(swarm.disconnects)}")
    if perf_counter() > end:
        raise SwarmFailed(f"filling took more than {FILL_S_MAX:.0f} s")
