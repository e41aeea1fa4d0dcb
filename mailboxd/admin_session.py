"""What the administrator's commands work with: a connection, the keyring where needed, a request id for the audit."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from mailboxd.settings import load_settings
from protocol.errors import MailboxError
from runtime.clock import SystemClock
from runtime.config import ProcessConfig
from runtime.keyring import Keyring
from runtime.logs import DeviceTags
from store.audit import AuditStore
from store.instance import has_instance
from store.invites import InviteStore
from store.policy import PolicyStore
from store.policy_rules import Policy
from store.postgres import Postgres

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class AdminSession:
    """One command's view of the instance. `request_id` names the command in the audit events that it leaves."""

    config: ProcessConfig
    postgres: Postgres
    request_id: str

    @cached_property
    def keyring(self) -> Keyring:
        return Keyring.load(self.config.secrets_dir)

    @cached_property
    def audit(self) -> AuditStore:
        clock = SystemClock()
        return AuditStore(self.postgres, DeviceTags(self.keyring.log_key, clock), clock)

    @cached_property
    def policy_store(self) -> PolicyStore:
        return PolicyStore(self.postgres, self.audit)

    async def policy(self) -> Policy:
        return await self.policy_store.load()

    async def invites(self) -> InviteStore:
        policy = await self.policy()
        return InviteStore(self.postgres, self.audit, lambda: policy)


@asynccontextmanager
async def admin_session(data_dir: Path | None, config_file: Path | None) -> AsyncIterator[AdminSession]:
    """Raises ConfigError or CommandError before it connects, MailboxError UNAVAILABLE when it cannot."""
    config = load_settings(ProcessConfig, data_dir=data_dir, config_file=config_file)
    postgres = Postgres(config.postgres_dsn, pool_min=1, pool_max=2, application_name="mailboxd admin")
    try:
        await postgres.open()
    except MailboxError:
        await has_instance(config.postgres_dsn)  # says more exactly what is wrong, where it can
        raise
    try:
        yield AdminSession(config=config, postgres=postgres, request_id=f"admin-{secrets.token_hex(8)}")
    finally:
        await postgres.close()


def run_admin(data_dir: Path | None, config_file: Path | None, body: Callable[[AdminSession], Awaitable[T]]) -> T:
    """Run one command's body in a session of its own and return its result."""

    async def run() -> T:
        async with admin_session(data_dir, config_file) as session:
            return await body(session)

    return asyncio.run(run())
