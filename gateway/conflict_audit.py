"""Audit events for message id conflicts (seed 000, 3.1): noted on the hot path, written beside it.

A refused SEND leaves nothing in its transaction, so the event is written alone: after the answer, bounded in the queue
here and per minute in `AuditStore`. Who floods conflicts fills neither memory nor the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from protocol.errors import MailboxError
from protocol.ids import DeviceId
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.audit import AuditStore, AuditType

WAITING_MAX: Final = 60
IDLE_S: Final = 10.0

log = structlog.get_logger(__name__)


class ConflictAudit:
    """Writes one event a conflict; past WAITING_MAX unwritten ones further conflicts are left out."""

    def __init__(self, audit: AuditStore, policy_version: Callable[[], int]) -> None:
        self._audit = audit
        self._policy_version = policy_version
        self._waiting: deque[tuple[DeviceId, str]] = deque()
        self._bell = Doorbell()

    def note(self, actor: DeviceId, request_id: str) -> None:
        """A SEND of `actor` met another envelope under its message id. Costs no wait."""
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append((actor, request_id))
            self._bell.ring()

    async def run(self, progress: Progress) -> None:
        """Write what is noted, one at a time; an event that the database does not take is dropped and logged."""
        while True:
            progress()
            if not self._waiting:
                await self._bell.wait(at_most_seconds=IDLE_S)
                continue
            actor, request_id = self._waiting[0]
            try:
                await self._audit.record_refusal(
                    AuditType.MESSAGE_ID_CONFLICT,
                    request_id=request_id,
                    policy_version=self._policy_version(),
                    actor=actor,
                )
            except MailboxError:
                log.warning("an audit event was not written", request_id=request_id)
            self._waiting.popleft()
