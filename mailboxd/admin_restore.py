"""`mailboxd admin after-restore`: the one command between a restored database and its first writer."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any

from mailboxd.admin_devices import identity_store
from mailboxd.admin_session import AdminSession
from mailboxd.init import public_signing_keys
from mailboxd.settings import load_settings
from mailboxd.terminal import CommandError
from migrations import runner
from protocol.errors import ErrorCode, MailboxError
from protocol.ids import DeviceId, id_from_text
from runtime.config import ProcessConfig
from store.after_restore import AfterRestore, RestoredPostgres
from store.instance import take_over_signing_keys
from store.retention import BEFORE_ALL, RetentionStore

PAGE = 500
REVOCATION_LINES_MAX = 1_000_000


def after_restore(
    data_dir: Path | None, config_file: Path | None, *, revocations: Path | None, force: bool
) -> dict[str, Any]:
    """Do all of it and say what was found. Interrupted, it can be run again.

    Raises CommandError for every fault that it finds: a schema that is not this release's, idempotency keys that stand
    twice, counters that differed from their rows. The database stays closed then. Counters are repaired first, so the
    next run gets past them. Also when this restore was dealt with already, and not `force`.
    """
    config = load_settings(ProcessConfig, data_dir=data_dir, config_file=config_file)
    revoked = _read_revocations(revocations) if revocations is not None else []
    return asyncio.run(_after_restore(config, revoked, force=force))


async def _after_restore(config: ProcessConfig, revoked: list[DeviceId], *, force: bool) -> dict[str, Any]:
    if not await runner.is_current(config.postgres_dsn):
        raise CommandError("the restored schema is not this release's: run mailboxd migrate apply, then this again")
    postgres = RestoredPostgres(config.postgres_dsn, pool_min=1, pool_max=2, application_name="mailboxd after-restore")
    await postgres.open()
    try:
        session = AdminSession(config=config, postgres=postgres, request_id=f"admin-{secrets.token_hex(8)}")
        return await _run_steps(session, AfterRestore(postgres), revoked, force=force)
    finally:
        await postgres.close()


async def _run_steps(
    session: AdminSession, restored: AfterRestore, revoked: list[DeviceId], *, force: bool
) -> dict[str, Any]:
    state = await restored.state()
    if state.marker and state.marker == state.done and not force:
        raise CommandError(
            "this restore was dealt with already; --force does it again (all cursors are refused once more)"
        )
    if repeated := await restored.repeated_records():
        raise CommandError(
            f"{repeated} idempotency keys stand twice: the copy is damaged; restore another one, or rebuild the indexes"
        )
    policy = await session.policy()
    retention = RetentionStore(session.postgres)
    if repaired := await _repair_counters(retention):
        # A restored copy is of one moment, and in every moment they agree: somebody has to look before mail goes on.
        raise CommandError(
            f"the counters of {repaired} devices differed from their rows and were repaired: how was this copy made? "
            "If it is to be used, run this again"
        )
    report = {
        "overdue_s": {table.value: round(age) for table, age in (await retention.oldest_overdue(policy)).items()},
        "revocations_applied": await _revoke(session, revoked),
        "prekeys_suspect": await restored.suspect_prekeys(),
        "intents_requeued": await restored.requeue(),
    }
    await take_over_signing_keys(session.config.postgres_dsn, public_signing_keys(session.keyring))
    await restored.finish(session.audit, request_id=session.request_id, policy_version=policy.version)
    return report


async def _repair_counters(retention: RetentionStore) -> int:
    repaired, last = 0, BEFORE_ALL
    while True:
        drift = await retention.repair_counters(last, PAGE)
        repaired += drift.repaired
        if drift.last is None:
            return repaired
        last = drift.last


async def _revoke(session: AdminSession, devices: list[DeviceId]) -> int:
    """Devices that the restored database does not know were made after the backup, and are gone anyway."""
    identities = await identity_store(session)
    applied = 0
    for device in devices:
        try:
            applied += await identities.revoke_by_operator(device, request_id=session.request_id)
        except MailboxError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
    return applied


def _read_revocations(path: Path) -> list[DeviceId]:
    """One JSON object a line, as `mailboxd admin devices revocations` prints them. Every bad line is named."""
    devices, mistakes = [], []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in zip(range(1, REVOCATION_LINES_MAX + 1), lines, strict=False):
                try:
                    devices.append(DeviceId(id_from_text(json.loads(line)["device_id"])))
                except (ValueError, KeyError, TypeError):
                    mistakes.append(f"{path}:{number}: not a revocation")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} cannot be read: it is not text") from None
    if mistakes:
        raise CommandError(*mistakes[:20])
    return devices
