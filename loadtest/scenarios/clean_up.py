"""A million envelopes expire at once while mail flows: they go, and nobody notices."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from time import perf_counter
from typing import Any, Final

import asyncpg

from loadtest.recorder import Recorder
from loadtest.run import Run, figures, joined, judged, merged
from loadtest.scenarios.growth import GrowthFailed
from loadtest.scenarios.paced import pace
from loadtest.stored_mail import NoRoom, check_room, settle, silent_mailboxes, spread
from loadtest.swarm import Swarm, Traffic

MAILBOXES: Final = 10_000
BODY_BYTES: Final = 256
BEFORE_S: Final = 20.0
PART_S: Final = 5.0
GONE_S_MAX: Final = 420.0
FILL_S_MAX: Final = 150.0  # they end so long after the filling began, the measuring before it included


async def expiry(run: Run) -> dict[str, Any]:
    """`--rate` messages a second, before and while `--stored` envelopes that end at one moment are cleaned up.

    `ratio_p99`: delivery's p99 during the clean-up over that before it, in the same run with the same rows there.
    """
    settings, dsn, data_dir = run.settings, run.server.postgres_dsn, run.server.data_dir
    if dsn is None or data_dir is None:
        raise GrowthFailed("expiry: the database of a server given by --url is not known")
    rows = settings.stored[-1]
    try:
        check_room(data_dir, rows, BODY_BYTES)
    except NoRoom as error:
        raise GrowthFailed(f"expiry: {error}") from error
    recorder = Recorder()
    everybody = range(settings.devices)
    traffic = Traffic(payload_bytes=settings.payload_bytes, senders=everybody, recipients=everybody)
    swarm = Swarm(await run.accounts(settings.devices), run.server.endpoints, traffic, recorder)
    connection = await asyncpg.connect(dsn)
    meter = run.meter()
    try:
        await silent_mailboxes(connection, MAILBOXES)
        started = perf_counter()
        ends_at = await connection.fetchval("SELECT mailboxd_now() + $1::interval", timedelta(seconds=FILL_S_MAX))
        await spread(connection, rows, BODY_BYTES, ends_at=ends_at)
        await settle(dsn)
        filled_s = perf_counter() - started
        await swarm.connect()
        pacing = asyncio.create_task(pace(swarm, settings.rate_per_s, swarm.devices), name="pace")
        try:
            await swarm.warm_up(settings.warmup_s)
            before, before_s = await swarm.measure(BEFORE_S)
            # It has not begun yet, or the comparison is none.
            left = await connection.fetchval("SELECT extract(epoch FROM $1 - mailboxd_now())", ends_at)
            if left < 0:
                raise GrowthFailed(f"expiry: filling took {filled_s:.0f} s, too long for this run's plan")
            await swarm.warm_up(float(left))
            meter.start()
            await swarm.warm_up(1.0)  # looking up the processes has held the load generator's own loop
            parts, clean_s, remaining = [], 0.0, rows
            while remaining and clean_s < GONE_S_MAX:
                part, seconds = await swarm.measure(PART_S)
                parts.append(part)
                clean_s += seconds
                remaining = await connection.fetchval(_REMAINING)
            during = joined(parts)
            used = meter.stop(during.confirmed)
            await swarm.warm_up(settings.warmup_s)  # adding up has held the load generator's own loop
            after, after_s = await swarm.measure(BEFORE_S)
        finally:
            pacing.cancel()
            await asyncio.wait((pacing,))
        verdict = judged(swarm, recorder, drained=await swarm.drain())
    finally:
        await connection.close()
        swarm.close()
    verdict["ok"] = verdict["ok"] and not remaining
    p99 = [window.delivery.percentile_ms(0.99) or 0.0 for window in (before, during)]
    ratio = round(p99[1] / p99[0], 3) if p99[0] else 0.0
    return merged(
        {"devices": settings.devices, "payload": settings.payload_bytes, "rate_per_s": settings.rate_per_s},
        {"rows": rows, "filled_s": round(filled_s, 1), "remaining": remaining, "cleaned_s": round(clean_s, 1)},
        {"cleaned_per_s": round((rows - remaining) / clean_s, 1), "ratio_p99": ratio},
        figures(during, clean_s),
        {"before": figures(before, before_s), "after": figures(after, after_s)},
        {"parts": [part.delivery.summary() for part in parts]},
        {"facts": {"p99 during over before:": ratio, "rows cleaned a second:": round((rows - remaining) / clean_s)}},
        verdict,
        {"cpu": used},
    )


# Left to the clean-up: those of the silent mailboxes alone, by their counters, which it keeps right.
_REMAINING: Final = """
SELECT coalesce(sum(b.stored_entries - w.released_entries), 0)::bigint
  FROM bench_silent s JOIN mailboxes b ON b.device_id = s.device_id JOIN mailbox_owners w ON w.device_id = s.device_id
"""
