"""What one more of each costs: a registered device, a stored envelope, a message a second.

Devices and envelopes are counted in bytes on disk, indexes included, after a vacuum. A message is measured by the slope
between two rates of `paced`, so that what runs anyway does not count as its cost; WAL and what stays on disk of a
message come from the higher rate. What a connection costs in memory is `idle`'s figure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

import asyncpg

from loadtest.recorder import Recorder
from loadtest.run import Run, judged, merged
from loadtest.scenarios.growth import GrowthFailed
from loadtest.scenarios.paced import pace
from loadtest.stored_mail import settle, silent_mailboxes, spread
from loadtest.swarm import Swarm, Traffic

DEVICES: Final = 1_000
SILENT: Final = 1_000
ENVELOPES: Final = 100_000
RATES_PER_S: Final = (250, 1_000)
_OF_A_DEVICE: Final = ("identities", "devices", "mailboxes", "mailbox_owners")


async def costs(run: Run) -> dict[str, Any]:
    """The three costs as `costs`, and the verdict on the traffic that was needed to learn them."""
    dsn, settings = run.server.postgres_dsn, run.settings
    if dsn is None:
        raise GrowthFailed("costs: the database of a server given by --url is not known")
    connection = await asyncpg.connect(dsn)
    try:
        before = await _bytes(connection, _OF_A_DEVICE)
        known = await connection.fetchval("SELECT count(*) FROM devices")
        accounts = await run.accounts(DEVICES)
        await settle(dsn)
        added = await connection.fetchval("SELECT count(*) FROM devices") - known
        device = (await _bytes(connection, _OF_A_DEVICE) - before) / added

        await silent_mailboxes(connection, SILENT)
        before = await _bytes(connection, ("envelopes",))
        await spread(connection, ENVELOPES, settings.payload_bytes)
        await settle(dsn)
        envelope = (await _bytes(connection, ("envelopes",)) - before) / ENVELOPES

        recorder = Recorder()
        everybody = range(min(settings.devices, DEVICES))
        traffic = Traffic(payload_bytes=settings.payload_bytes, senders=everybody, recipients=everybody)
        swarm = Swarm(accounts[: len(everybody)], run.server.endpoints, traffic, recorder)
        try:
            await swarm.connect()
            low, high = [await _at_rate(run, swarm, connection, rate) for rate in RATES_PER_S]
            verdict = judged(swarm, recorder, drained=await swarm.drain())
        finally:
            swarm.close()
    finally:
        await connection.close()
    more = high["rate"] - low["rate"]
    message = {role: round((high["cores"][role] - low["cores"][role]) / more * 1e6, 1) for role in high["cores"]}
    found = {
        "device_disk_bytes": round(device),
        "envelope_disk_bytes": round(envelope),
        "message_cpu_us": message,
        "message_wal_bytes": round(high["wal"]),
        "message_records_bytes": round(high["records"]),
    }
    server_us = sum(us for role, us in message.items() if role != "load_generator")
    return merged(
        {"payload": settings.payload_bytes, "costs": found},
        # Behind its pace a rate is not what was planned, and the slope between the two says nothing.
        {"kept_pace": round(min(low["rate"] / RATES_PER_S[0], high["rate"] / RATES_PER_S[1]), 4)},
        {
            "facts": {
                "a registered device, bytes on disk:": found["device_disk_bytes"],
                f"a stored envelope of {settings.payload_bytes} bytes, bytes on disk:": found["envelope_disk_bytes"],
                "a message more a second, us of CPU:": f"{server_us:.0f} {message}",
                "WAL bytes a message:": found["message_wal_bytes"],
                "bytes of idempotency and ACK records a message, for two hours at most:": found[
                    "message_records_bytes"
                ],
            }
        },
        verdict,
    )


async def _at_rate(run: Run, swarm: Swarm, connection: asyncpg.Connection[Any], rate: int) -> dict[str, Any]:
    """Cores of each role, and bytes written a message, at this rate."""
    pacing = asyncio.create_task(pace(swarm, rate, swarm.devices), name="pace")
    try:
        await swarm.warm_up(run.settings.warmup_s)
        meter = run.meter()
        lsn, records = await connection.fetchval(_LSN), await _bytes(connection, ("idempotency_records", "ack_batches"))
        meter.start()
        started = perf_counter()
        window, seconds = await swarm.measure(run.settings.seconds)
        used = meter.stop(window.confirmed)
        wal = await connection.fetchval(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::bigint", lsn
        )
        stayed = await _bytes(connection, ("idempotency_records", "ack_batches")) - records
        counted = window.confirmed * (perf_counter() - started) / seconds
    finally:
        pacing.cancel()
        await asyncio.wait((pacing,))
    return {
        "rate": window.confirmed / seconds,
        "cores": {role: usage["cores"] for role, usage in used.items()},
        "wal": wal / counted,
        "records": stayed / counted,
    }


async def _bytes(connection: asyncpg.Connection[Any], tables: Sequence[str]) -> int:
    return int(
        await connection.fetchval(
            "SELECT sum(pg_total_relation_size(t::regclass)) FROM unnest($1::text[]) AS t", tables
        )
    )


_LSN: Final = "SELECT pg_current_wal_insert_lsn()::text"
