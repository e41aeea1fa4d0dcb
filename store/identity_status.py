"""An identity is active or disabled: the operator's reversible no to somebody, where revoking a device is for good."""

from __future__ import annotations

from typing import Final

from protocol.ids import IdentityId
from store.audit import AuditOutcome, AuditStore, AuditType
from store.postgres import Postgres
from store.sql_files import load_sql

_SQL: Final = load_sql("identities")


async def set_identity_status(
    postgres: Postgres, audit: AuditStore, identity: IdentityId, *, active: bool, request_id: str, policy_version: int
) -> bool | None:
    """True when that changed something, False when it was so already, None when there is no such identity.

    A disabled identity gets no token, adds no device, uploads no keys, and nobody claims its keys: FORBIDDEN, and
    NOT_FOUND for others. A token that one of its devices holds already is good to its end, so a session lasts
    TOKEN_TTL_S at most; its mail is kept and expires as any other.
    """
    status = "active" if active else "disabled"
    async with postgres.transaction() as connection:
        before = await connection.fetchval(_SQL["lock_identity"], identity)
        if before is None:
            return None
        if before == status:
            return False
        await connection.execute(_SQL["set_identity_status"], identity, status)
        await audit.record(
            connection,
            AuditType.IDENTITY_ENABLED if active else AuditType.IDENTITY_DISABLED,
            AuditOutcome.DONE,
            request_id=request_id,
            policy_version=policy_version,
        )
    return True
