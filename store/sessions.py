"""Sessions as the database sees them: fencing, leases, and what a gateway's sweep compares.

One session per device, whoever's gateway it is on: the epoch in `mailbox_owners` says whose turn it is. Opening and
closing go through one queue, so that a device which comes back at once does not meet its own old session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from blake3 import blake3

from protocol.errors import ErrorCode, MailboxError
from protocol.ids import DeviceId, MessageId
from protocol.limits import PREKEYS_LOW, TAKEOVER_ALIVE_S, TAKEOVERS_PER_MINUTE
from runtime import faultpoints
from store.coalescer import Coalescer, Told, Waiting
from store.postgres import LaneFault, Postgres
from store.sql_files import load_sql

BATCH_MAX: Final = 256
WAITING_MAX: Final = 20_000
SWEEP_MAX: Final = 1_000  # sessions in one call
OPENS_PER_DEVICE_MAX: Final = TAKEOVERS_PER_MINUTE  # in one batch; each further one would be a round trip of its own

_LEASE_SLACK_MS: Final = 10_000  # past the heartbeat deadline, so that a living session's lease never runs out


def lease_ms(heartbeat_s: int) -> int:
    """How long after a sign of life a device counts as online: until it would be closed for silence, and a bit.

    At the default heartbeat 105 s: a phone behind a black hole is woken at most 110 s after the commit.
    """
    return (2 * heartbeat_s + 5) * 1000 + _LEASE_SLACK_MS


class Verdict(IntEnum):
    """How a HELLO was judged (open_sessions_v1)."""

    OPENED = 0
    UNKNOWN_DEVICE = 1
    REVOKED = 2
    LATE_ATTEMPT = 3
    TOO_MANY_TAKEOVERS = 4


class OpenRequest(NamedTuple):
    """A HELLO with a good token. `start`: what its cursor says in the history `start_epoch`; it counts in no other."""

    device: DeviceId
    instance: bytes | None
    attempt: int | None
    life_ms: int | None  # how long ago a session of the device on this gateway showed life
    start: int = 0
    start_epoch: bytes | None = None


class Opened(NamedTuple):
    """The answer to a HELLO, all of one moment. What stands behind `verdict` counts only when it is OPENED."""

    verdict: Verdict
    session_epoch: int
    replaced_epoch: int  # the session that has to go, 0 when there was none
    same_process: bool  # … and it belonged to the same process of the client
    retry_after_ms: int
    start: int
    pending: bool  # something un-acked lies behind `start`, echoes included
    head: int
    pending_entries: int  # echoes not counted
    pending_bytes: int
    prekeys_left: int  # exact below PREKEYS_LOW
    route_gone: bool
    now_ms: int
    epoch: bytes


class CloseRequest(NamedTuple):
    """The end of a session. `unfinished`: something may lie there that the device has neither acked nor deferred."""

    device: DeviceId
    session_epoch: int
    unfinished: bool


class SweepRequest(NamedTuple):
    """One connected device. `life_ms` None leaves its lease alone."""

    device: DeviceId
    session_epoch: int
    life_ms: int | None = None
    contact: bool = False


class SessionState(NamedTuple):
    """What the database says about one device's session now."""

    session_epoch: int
    instance_hash: bytes | None
    attempt: int | None
    known: bool
    revoked: bool
    head: int


class Swept(NamedTuple):
    states: tuple[SessionState, ...]
    now_ms: int
    epoch: bytes


Item = Waiting[OpenRequest | CloseRequest, Opened | None]
Round = tuple[list[Item], list[Item]]


class SessionStore:
    """Opens, renews and closes sessions, many at a time. Errors are MailboxErrors."""

    def __init__(
        self, postgres: Postgres, *, instance_key: bytes, heartbeat_s: int, clock: Callable[[], float]
    ) -> None:
        """`instance_key`: 32 bytes under which the client's process ids are hashed."""
        self._postgres = postgres
        self._key = instance_key
        self._lease_ms = lease_ms(heartbeat_s)
        self._sql = load_sql("sessions")
        self._lane = postgres.lane("sessions")
        self._sweep_lane = postgres.lane("sweep")
        self._coalescer: Coalescer[OpenRequest | CloseRequest, Opened | None] = Coalescer(
            "sessions",
            self._flush,
            clock=clock,
            entries_max=BATCH_MAX,
            bytes_max=BATCH_MAX,
            waiting_max=WAITING_MAX,
            waiting_bytes_max=WAITING_MAX,
        )
        self._clock = clock
        self._touched: dict[DeviceId, float] = {}
        self.closed_with_mail: list[Callable[[], None]] = []  # run when a close made a wake intent due

    @property
    def waiting(self) -> int:
        return self._coalescer.waiting

    def open(self, request: OpenRequest, done: Callable[[Opened | MailboxError], None]) -> None:
        """Judge a HELLO; `done` is told after the commit. UNAVAILABLE at once when the queue is full."""

        def told(result: Opened | MailboxError | None) -> None:
            if result is not None:  # only closes are answered with None
                done(result)

        self._coalescer.put(request, key=hash(request.device), entries=1, size=0, done=told)

    def close(self, request: CloseRequest) -> None:
        """Say that a session ended. Best effort: what is lost here runs out with the lease."""
        try:
            self._coalescer.put(request, key=hash(request.device), entries=1, size=0, done=_ignore)
        except MailboxError:
            return

    def instance_hash(self, device: DeviceId, instance: bytes | None) -> bytes | None:
        """What the database keeps of the client's process id."""
        if instance is None:
            return None
        return blake3(b"mailboxd.client-instance\x00" + device + instance, key=self._key).digest(16)

    async def sweep(self, requests: Sequence[SweepRequest]) -> Swept:
        """Compare at most SWEEP_MAX distinct devices, in the order given, and renew the leases of those that live."""
        order = sorted(range(len(requests)), key=lambda n: requests[n].device)
        ordered = [requests[n] for n in order]
        try:
            rows = await self._sweep_lane.call(
                self._sql["sweep_sessions_v1"],
                [request.device for request in ordered],
                [request.session_epoch for request in ordered],
                [request.life_ms for request in ordered],
                [request.contact for request in ordered],
                self._lease_ms,
            )
        except LaneFault as failure:
            raise failure.error() from failure
        now_ms, *columns = rows[0].values()
        states: list[SessionState | None] = [None] * len(requests)
        for n, (current, instance, attempt, state, head) in zip(order, zip(*columns, strict=True), strict=True):
            states[n] = SessionState(current, instance, attempt, state != 0, state == 2, head)
        return Swept(tuple(state for state in states if state is not None), now_ms, self._sweep_lane.epoch)

    async def still_pending(self, entries: Sequence[tuple[DeviceId, MessageId]]) -> list[bool]:
        """For each entry whether it still waits: not acked, not expired, not gone."""
        try:
            rows = await self._sweep_lane.call(
                self._sql["still_pending_v1"], [device for device, _ in entries], [mid for _, mid in entries]
            )
        except LaneFault as failure:
            raise failure.error() from failure
        pending: list[bool] = rows[0]["p_pending"] or []
        return pending

    async def contact(self, device: DeviceId) -> None:
        """A pull over HTTP is contact. At most one write a device and minute; the memory of it is bounded."""
        now = self._clock()
        if now < self._touched.get(device, 0.0):
            return
        if len(self._touched) >= 10_000:
            self._touched = {known: until for known, until in self._touched.items() if until > now}
            if len(self._touched) >= 10_000:
                self._touched.clear()
        self._touched[device] = now + 60.0
        await self._postgres.execute(self._sql["touch_contacts_v1"], [device])

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new HELLOs, write the closes that are queued."""
        clean = await self._coalescer.drain(timeout_s)
        await self._lane.close()
        await self._sweep_lane.close()
        return clean

    async def _flush(self, batch: Sequence[Item]) -> Told[OpenRequest | CloseRequest, Opened | None]:
        judged, excess = within_reason(batch)
        crowded = MailboxError(ErrorCode.RATE_LIMITED, retry_after_ms=1_000)
        told: list[tuple[Item, Opened | MailboxError | None]] = [(item, crowded) for item in excess]
        for closes, opens in rounds_of(judged):
            try:
                await faultpoints.reach("session.before_call")
                if closes:
                    await self._write_closes([item.item for item in closes])
                    told += [(item, None) for item in closes]
                if opens:
                    told += zip(opens, await self._judge([item.item for item in opens]), strict=True)
            except LaneFault as failure:
                done = {id(item) for item, _ in told}
                error = failure.error()
                told += [(item, error) for item in (*closes, *opens) if id(item) not in done]
        return told

    async def _write_closes(self, requests: Sequence[Any]) -> None:
        ordered = sorted(requests, key=lambda request: request.device)
        rows = await self._lane.call(
            self._sql["close_sessions_v1"],
            [request.device for request in ordered],
            [request.session_epoch for request in ordered],
            [request.unfinished for request in ordered],
        )
        if rows[0]["due"]:
            for hook in self.closed_with_mail:
                hook()

    async def _judge(self, requests: Sequence[Any]) -> list[Opened | MailboxError]:
        order = sorted(range(len(requests)), key=lambda n: requests[n].device)
        ordered = [requests[n] for n in order]
        epoch = self._lane.epoch
        rows = await self._lane.call(
            self._sql["open_sessions_v1"],
            [request.device for request in ordered],
            [self.instance_hash(request.device, request.instance) for request in ordered],
            [request.attempt for request in ordered],
            [request.life_ms for request in ordered],
            [request.start if request.start_epoch == epoch else 0 for request in ordered],
            self._lease_ms,
            TAKEOVERS_PER_MINUTE,
            int(TAKEOVER_ALIVE_S * 1000),
            PREKEYS_LOW,
        )
        now_ms, *columns = rows[0].values()
        answers: list[Opened | MailboxError] = [MailboxError(ErrorCode.INTERNAL)] * len(requests)
        moved = self._lane.epoch != epoch  # reconnected into another history: a cursor's position means nothing there
        for n, row in zip(order, zip(*columns, strict=True), strict=True):
            if moved and row[5]:
                answers[n] = MailboxError(ErrorCode.UNAVAILABLE, retry_after_ms=1_000)
            else:
                answers[n] = Opened._make((Verdict(row[0]), *row[1:], now_ms, self._lane.epoch))
        return answers


def rounds_of(batch: Sequence[Item]) -> list[Round]:
    """The batch as rounds of closes and then opens, no device twice in either; a device's items keep their order."""
    rounds: list[Round] = []
    last: dict[DeviceId, tuple[int, bool]] = {}
    for item in batch:
        opens = isinstance(item.item, OpenRequest)
        at, opened = last.get(item.item.device, (0, False))
        if item.item.device in last and (opened or not opens):
            at += 1
        last[item.item.device] = (at, opens)
        if at == len(rounds):
            rounds.append(([], []))
        rounds[at][opens].append(item)
    return rounds


def within_reason(batch: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """What is judged, and apart from it the HELLOs of a device that sends a crowd of them at once."""
    judged: list[Item] = []
    excess: list[Item] = []
    opens: Counter[DeviceId] = Counter()
    for item in batch:
        opens[item.item.device] += isinstance(item.item, OpenRequest)
        crowds = isinstance(item.item, OpenRequest) and opens[item.item.device] > OPENS_PER_DEVICE_MAX
        (excess if crowds else judged).append(item)
    return judged, excess


def _ignore(_result: object) -> None:
    """A close has nobody who waits for it."""
