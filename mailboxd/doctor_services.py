"""The doctor's questions to PostgreSQL and Redis."""

from __future__ import annotations

import time
from typing import Final

from mailboxd.findings import Finding, Verdict
from mailboxd.init import public_signing_keys
from migrations import runner
from protocol.errors import MailboxError
from runtime.keyring import Keyring
from store.diagnosis import NotReached, read_postgres, read_redis
from store.instance import read_signing_keys

POSTGRES_MIN: Final = 150_000
REDIS_MIN: Final = (7,)
CLOCK_WARN_MS: Final = 2_000
CLOCK_FAIL_MS: Final = 300_000  # DESIGN, "Order": expiry cleanup stops beyond 5 minutes


async def examine_postgres(dsn: str, keyring: Keyring | None) -> list[Finding]:
    before_ms = time.time_ns() // 1_000_000
    try:
        facts = await read_postgres(dsn)
    except NotReached as error:
        return [Finding("postgresql", Verdict.FAILED, f"cannot be reached: {error}")]
    drift_ms = abs(facts.now_ms - (before_ms + time.time_ns() // 1_000_000) // 2)
    findings = []
    if facts.version < POSTGRES_MIN:
        findings.append(Finding("postgresql", Verdict.FAILED, f"{facts.version_text}: 15 or newer is needed"))
    elif facts.in_recovery:
        findings.append(
            Finding("postgresql", Verdict.FAILED, "a standby that takes no writes: point the DSN at the primary")
        )
    else:
        findings.append(Finding("postgresql", Verdict.OK, facts.version_text))
    unsafe = [name for name, on in (("fsync", facts.fsync), ("full_page_writes", facts.full_page_writes)) if not on]
    unsafe += ["synchronous_commit"] if facts.synchronous_commit == "off" else []
    if unsafe:
        told = f"{', '.join(unsafe)} is off: accepted mail can be lost in a crash; turn it on"
        findings.append(Finding("durability", Verdict.FAILED, told))
    else:
        findings.append(Finding("durability", Verdict.OK, f"fsync on, synchronous_commit {facts.synchronous_commit}"))
    verdict = (
        Verdict.FAILED if drift_ms >= CLOCK_FAIL_MS else Verdict.WARNING if drift_ms >= CLOCK_WARN_MS else Verdict.OK
    )
    findings.append(Finding("clock", verdict, f"{drift_ms} ms between this host and the database"))
    if facts.superuser:
        findings.append(
            Finding("role", Verdict.WARNING, "a superuser: give mailboxd an ordinary role that owns its database")
        )
    return [*findings, await _schema(dsn), *await _instance(dsn, keyring)]


async def _schema(dsn: str) -> Finding:
    try:
        steps = await runner.status(dsn)
    except runner.MigrationError as error:
        return Finding("schema", Verdict.FAILED, str(error))
    if changed := [step.version for step in steps if step.changed]:
        return Finding(
            "schema", Verdict.FAILED, f"{', '.join(changed)} changed after being applied: use the original release"
        )
    if missing := [step.version for step in steps if step.state not in ("applied", "unknown")]:
        return Finding("schema", Verdict.FAILED, f"{', '.join(missing)} not applied: run mailboxd migrate apply")
    if newer := [step.version for step in steps if step.state == "unknown"]:
        return Finding("schema", Verdict.WARNING, f"{', '.join(newer)} of a newer release: fine during an upgrade")
    return Finding("schema", Verdict.OK, f"at {steps[-1].version}")


async def _instance(dsn: str, keyring: Keyring | None) -> list[Finding]:
    try:
        published = await read_signing_keys(dsn)
    except MailboxError as error:
        return [Finding("instance", Verdict.FAILED, error.message)]
    if published is None:
        return [Finding("instance", Verdict.FAILED, "there is none in the database: run mailboxd init")]
    if keyring is None:
        return []
    if published != public_signing_keys(keyring):
        told = (
            "the keyring here holds other signing keys than it knows: copy the newest keyring here, run mailboxd init"
        )
        return [Finding("instance", Verdict.FAILED, told)]
    return [Finding("instance", Verdict.OK, "the database and the keyring belong together")]


async def examine_redis(url: str) -> list[Finding]:
    try:
        facts = await read_redis(url)
    except NotReached as error:
        return [Finding("redis", Verdict.FAILED, f"cannot be reached: {error}")]
    if facts.version < REDIS_MIN:
        return [Finding("redis", Verdict.FAILED, f"{facts.version_text}: Redis 7 or Valkey 7.2, or newer, is needed")]
    findings = [Finding("redis", Verdict.OK, facts.version_text)]
    if facts.maxmemory_policy != "noeviction":
        told = (
            f"maxmemory-policy is {facts.maxmemory_policy}: set noeviction, or queue entries vanish and wakes come late"
        )
        findings.append(Finding("redis memory", Verdict.WARNING, told))
    return findings
