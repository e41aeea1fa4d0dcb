"""A server that behaves as WIRE says, in memory: the real admission rule, sessions, cursors and codec, no I/O.

Used by the simulation under its virtual clock, and by `tests/support/model_gateway.py` behind a real socket. It can be
restarted (sessions gone), restored to an earlier point (a new epoch, later entries gone) and made to refuse.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from mailbox_client.engine_io import Page
from protocol.admission import SEND, AdmissionState, Held, MailboxModel, Refused, Rule, Stored
from protocol.codec import decode_client_frame, encode_entry, encode_mailbox_batch, encode_server_frame
from protocol.cursor import CursorRing
from protocol.errors import CloseCode, ErrorCode, MailboxError, Outcome
from protocol.fingerprint import echo_mid
from protocol.frames import (
    Ack,
    AckResult,
    ClientFrame,
    Defer,
    Entry,
    Error,
    GoAway,
    Hello,
    MailboxBatch,
    Ping,
    Pong,
    PullMailbox,
    PushEvents,
    Reauth,
    Send,
    SendAck,
    SendEnvelope,
    SendResult,
    ServerFrame,
    Welcome,
)
from protocol.ids import ClientMessageId, DeviceId, IdentityId, InstanceId, MessageId
from protocol.limits import BATCH_BYTES_MAX, ECHO_BACKLOG_MAX, MAX_FRAME_BYTES, WireLimits
from protocol.server_session import Close, DueKind, ServerSession, come_back_reason

START_MS: Final = 1_800_000_000_000
SECRET: Final = bytes(range(32))


@dataclass(frozen=True, kw_only=True)
class ModelPolicy:
    """The policy keys that matter to a client, small enough to be reached."""

    protocol_versions: Sequence[int] = (1,)
    envelope_bytes_max: int = 65_536
    pending_entries_max: int = 10_000
    pending_bytes_max: int = 134_217_728
    ttl_s_min: int = 60
    ttl_s_default: int = 604_800
    ttl_s_max: int = 604_800
    idempotency_ttl_s: int = 86_400
    client_dedup_ttl_s: int = 7_200
    heartbeat_s: int = 45
    token_ms: int = 900_000
    sends_in_flight: int = 256
    bytes_in_flight: int = 8 * 1024 * 1024
    echo_backlog_max: int = ECHO_BACKLOG_MAX

    @property
    def limits(self) -> WireLimits:
        return WireLimits(
            MAX_FRAME_BYTES,
            self.envelope_bytes_max,
            self.ttl_s_min,
            self.ttl_s_default,
            self.ttl_s_max,
            self.sends_in_flight,
            self.bytes_in_flight,
        )


class _Row(NamedTuple):
    position: int
    size: int
    entry: Entry


class _Request(NamedTuple):
    actor: DeviceId
    operation: str
    key: bytes
    cmid: ClientMessageId | None
    envelopes: tuple[SendEnvelope, ...]
    echo: bool
    rate_refused_ms: int | None = None
    pair_refused: tuple[int, ...] = ()


@dataclass
class Refusals:
    """What the server is told to refuse: looked at by every send, and by every HELLO, pull and ACK."""

    send: Callable[[DeviceId, Send], MailboxError | None] = field(default=lambda _device, _send: None)
    other: Callable[[DeviceId], MailboxError | None] = field(default=lambda _device: None)


class ModelServer:
    """One instance with its mailboxes. `clock_ms` is the database's time; every call happens at one moment of it."""

    def __init__(self, clock_ms: Callable[[], int], policy: ModelPolicy | None = None) -> None:
        self.policy = policy or ModelPolicy()
        self.instance_id = InstanceId(b"model-instance-1")
        self.refusals = Refusals()
        self.on_entry: Callable[[DeviceId], None] = lambda _device: None  # who waits for a mailbox hears of it here
        self._clock_ms = clock_ms
        self._rule = Rule(self.policy, lambda device, cmid: echo_mid(SECRET, device, cmid))
        self.state = AdmissionState()
        self._devices: dict[bytes, tuple[IdentityId, DeviceId]] = {}  # by public key
        self._ring = CursorRing(1, {1: bytes(32)})
        self._epoch = 1
        self._sessions: dict[DeviceId, Connection] = {}
        self._tokens: dict[str, tuple[DeviceId, int]] = {}
        self._serial = 0
        self._steps = 0

    # -- clock and ids

    @property
    def now_ms(self) -> int:
        return self._clock_ms()

    def _now_us(self) -> int:
        self._steps = (self._steps + 1) % 1000
        return self.now_ms * 1000 + self._steps

    def _new_id(self, kind: str) -> bytes:
        self._serial += 1
        return blake2b(f"{kind} {self._serial}".encode(), digest_size=16).digest()

    @property
    def _epoch_bytes(self) -> bytes:
        return self._epoch.to_bytes(8, "big")

    # -- identities and tokens (proofs are the real server's business)

    def register(self, device_public_key: bytes) -> tuple[IdentityId, DeviceId]:
        known = self._devices.get(device_public_key)
        if known is None:
            known = IdentityId(self._new_id("identity")), DeviceId(self._new_id("device"))
            self._devices[device_public_key] = known
            self.state.mailboxes[known[1]] = MailboxModel(known[0])
        return known

    def add_device(self, identity: IdentityId) -> DeviceId:
        device = DeviceId(self._new_id("device"))
        self.state.mailboxes[device] = MailboxModel(identity)
        return device

    def public_key_of(self, device: DeviceId) -> bytes | None:
        return next((key for key, (_identity, known) in self._devices.items() if known == device), None)

    def revoke(self, device: DeviceId) -> None:
        self.state.mailboxes[device].active = False
        session = self._sessions.get(device)
        if session is not None:
            session.end(CloseCode.REVOKED, "revoked")

    def make_token(self, device: DeviceId) -> tuple[str, int, int]:
        """The token, its end, and its `reauth_before`."""
        mailbox = self.state.mailboxes.get(device)
        if mailbox is None:
            raise MailboxError(ErrorCode.UNAUTHENTICATED)
        if not mailbox.active:
            raise MailboxError(ErrorCode.DEVICE_REVOKED)
        self._serial += 1
        token = f"token-{self._serial}"
        ends = self.now_ms + self.policy.token_ms
        self._tokens[token] = (device, ends)
        return token, ends, ends - min(60_000, self.policy.token_ms // 4)

    def device_of(self, token: str) -> tuple[DeviceId, int]:
        """Raises MailboxError as every door does for a token that is none, is over, or of a revoked device."""
        known = self._tokens.get(token)
        if known is None:
            raise MailboxError(ErrorCode.UNAUTHENTICATED)
        device, ends = known
        if self.now_ms >= ends:
            raise MailboxError(ErrorCode.TOKEN_EXPIRED)
        if not self.state.mailboxes[device].active:
            raise MailboxError(ErrorCode.DEVICE_REVOKED)
        return device, ends

    # -- what both doors do

    def send(self, device: DeviceId, send: Send) -> tuple[bool, tuple[SendResult, ...]]:
        replay = (device, SEND, send.cmid) in self.state.records  # a replay is looked up before every refusal
        refusal = None if replay else self.refusals.send(device, send)
        if refusal is None and not replay and send.echo and self._echo_backlog(device) >= self.policy.echo_backlog_max:
            refusal = MailboxError(ErrorCode.ECHO_BACKLOG_FULL, outcome=Outcome.NOT_COMMITTED)
        if refusal is not None and refusal.outcome is not Outcome.UNKNOWN:
            raise refusal
        request = _Request(device, SEND, send.cmid, send.cmid, send.envelopes, send.echo)
        now_us = self._now_us()
        verdict = self._rule.admit(self.state, request, now_us)
        self._rule.apply(self.state, request, verdict, now_us)
        if isinstance(verdict, Refused):
            raise MailboxError(verdict.code, at=verdict.at, outcome=Outcome.NOT_COMMITTED)
        if refusal is not None:
            raise refusal  # committed, and the answer says that nobody knows
        self._push(verdict.stored)
        return verdict.duplicate, verdict.results

    def _echo_backlog(self, device: DeviceId) -> int:
        return len(self.state.mailboxes[device].pending(self.now_ms, echo=True))

    def judge(self, device: DeviceId) -> None:
        """Raise what the server is told to refuse this device now."""
        refusal = self.refusals.other(device)
        if refusal is not None:
            raise refusal

    def ack(self, device: DeviceId, mids: Sequence[MessageId]) -> None:
        self.judge(device)
        self.state.ack(device, mids)
        session = self._sessions.get(device)
        if session is not None:
            session.freed(mids)

    def pull(self, device: DeviceId, cursor: str | None, limit: int, until: str | None) -> Page:
        self.judge(device)
        after = self.open_cursor(device, cursor) if cursor is not None else 0
        rows, more = self.page(device, after, limit, BATCH_BYTES_MAX)
        head = self.state.mailboxes[device].head
        at = rows[-1].position if rows and more else max(after, head)
        caught_up = at >= self.open_cursor(device, until) if until is not None else not more
        entries = tuple(row.entry for row in rows)
        return Page(entries, self.seal(device, at), more, self.seal(device, head), caught_up)

    def page(self, device: DeviceId, after: int, entries_max: int, bytes_max: int) -> tuple[list[_Row], bool]:
        now_ms = self.now_ms
        waiting = [
            held
            for held in self.state.mailboxes[device].entries.values()
            if not held.acked and held.expires_at > now_ms and held.position > after
        ]
        waiting.sort(key=lambda held: held.position)
        rows: list[_Row] = []
        size = 0
        for held in waiting:
            size += len(held.body)
            if rows and (len(rows) >= entries_max or size > bytes_max):
                return rows, True
            rows.append(_Row(held.position, len(held.body), _entry(held)))
        return rows, False

    # -- cursors

    def seal(self, device: DeviceId, position: int) -> str:
        cursors = self._ring.for_device(self.instance_id, device)
        return cursors.seal(position, self.now_ms, self._epoch_bytes)

    def open_cursor(self, device: DeviceId, cursor: str) -> int:
        opened = self._ring.for_device(self.instance_id, device).open(cursor, self.now_ms)
        if opened.epoch != self._epoch_bytes or opened.position > self.state.mailboxes[device].head:
            raise MailboxError(ErrorCode.CURSOR_INVALID)
        return opened.position

    # -- sessions

    def take_session(self, connection: Connection, hello: Hello, device: DeviceId) -> None:
        """One session per device (WIRE). Raises MailboxError RATE_LIMITED for a late attempt, closed with 4408."""
        older = self._sessions.get(device)
        if older is not None:
            same = hello.instance is not None and hello.instance == older.instance
            if same and (hello.attempt or 0) <= (older.attempt or 0):
                raise _LateAttempt
            older.end(CloseCode.NORMAL if same else CloseCode.REPLACED, "replaced")
        self._sessions[device] = connection

    def drop_session(self, connection: Connection) -> None:
        if connection.device is not None and self._sessions.get(connection.device) is connection:
            del self._sessions[connection.device]

    def _push(self, stored: Sequence[Stored]) -> None:
        for device, _previous, held in stored:
            self.on_entry(device)
            session = self._sessions.get(device)
            if session is not None:
                session.hint(held.position)

    def session_of(self, device: DeviceId) -> Connection | None:
        return self._sessions.get(device)

    # -- what happens to servers

    def tick(self) -> None:
        """Time has passed: heartbeats, token ends, expiry."""
        for session in list(self._sessions.values()):
            session.tick()

    def clean_up(self) -> None:
        self.state.clean_up(self.now_ms)

    def restart(self, *, say_goodbye: bool, reconnect_after_ms: int = 100) -> None:
        """All sessions end; what was committed stays."""
        for session in list(self._sessions.values()):
            if say_goodbye:
                session.send(GoAway(reconnect_after_ms, "drain"))
                session.end(CloseCode.RESTART, "")
            else:
                session.end(None, "")

    def backup(self) -> AdmissionState:
        return copy.deepcopy(self.state)

    def restore(self, backup: AdmissionState) -> None:
        """Go back to an earlier point in time: later entries and ACKs are forgotten, every cursor is refused."""
        self.restart(say_goodbye=False)
        present = self.state.mailboxes
        self.state = copy.deepcopy(backup)
        for device, mailbox in present.items():
            if device not in self.state.mailboxes:
                self.state.mailboxes[device] = MailboxModel(mailbox.identity)
        self._epoch += 1


class _LateAttempt(Exception):
    pass


class Connection:
    """One WebSocket at the server. `put` takes whole messages, `close` a close code (None: cut)."""

    def __init__(
        self, server: ModelServer, put: Callable[[bytes], None], close: Callable[[int | None, str], None]
    ) -> None:
        self._server = server
        self._put = put
        self._close = close
        self._session = ServerSession(opened_at=server.now_ms / 1000, heartbeat_s=server.policy.heartbeat_s)
        self.device: DeviceId | None = None
        self.instance: bytes | None = None
        self.attempt: int | None = None
        self.ended = False

    def send(self, frame: ServerFrame) -> None:
        if not self.ended:
            self._put(encode_server_frame(frame))

    def end(self, code: int | None, reason: str) -> None:
        """Close from this side."""
        if not self.ended:
            self.lost()
            self._close(code, reason)

    def lost(self) -> None:
        """The connection is gone."""
        self.ended = True
        self._session.closed()
        self._server.drop_session(self)

    def receive(self, data: bytes) -> None:
        if self.ended:
            return
        server = self._server
        now = server.now_ms / 1000
        self._session.heard_at = now
        try:
            frame = decode_client_frame(data, hello_seen=self._session.hello_seen)
            self._session.receive(frame, len(data), now)
            self._serve(frame, len(data))
        except MailboxError as error:
            self._fail(error)
        except _LateAttempt:
            self.end(CloseCode.TIMEOUT, "late attempt")

    def hint(self, position: int) -> None:
        self._session.hint(position)
        self._deliver()

    def freed(self, mids: Sequence[MessageId]) -> None:
        self._session.release(mids)
        self._session.recheck()
        self._deliver()

    def tick(self) -> None:
        now = self._server.now_ms / 1000
        while not self.ended and (due := self._session.due(now)) is not None:
            if due.kind is DueKind.CLOSE and due.close is not None:
                self._end_with(due.close)
            elif due.kind is DueKind.REAUTH_SOON:
                self.send(PushEvents(({"kind": "reauth_soon", "before": self._server.now_ms},)))
                self.send(GoAway(100, "token"))
                self._session.leaving()
        if not self.ended and self._session.expire(self._server.now_ms):
            self._session.recheck()
            self._deliver()

    def _fail(self, error: MailboxError, **where: object) -> None:
        close = self._session.close_for(error, reconnect_after_ms=error.retry_after_ms or 1_000)
        self.send(
            Error(
                error.code,
                error.message,
                error.retryable,
                "request",
                retry_after_ms=error.retry_after_ms,
                at=error.at,
                outcome=error.outcome,
                **where,  # type: ignore[arg-type]
            )
        )
        if close is not None:
            self.end(close.code, close.reason)

    def _end_with(self, close: Close) -> None:
        if close.error is not None:
            self._fail(close.error)
        self.end(close.code, close.reason)

    def _serve(self, frame: ClientFrame, size: int) -> None:
        server, session = self._server, self._session
        match frame:
            case Hello():
                self._hello(frame)
                return
            case Reauth(token):
                self._reauth(token)
                return
            case Ping(t):
                self.send(Pong(t))
                return
            case _:
                pass
        assert self.device is not None
        match frame:
            case Send(cmid):
                try:
                    duplicate, results = server.send(self.device, frame)
                except MailboxError as error:
                    self._fail(error, cmid=cmid)
                else:
                    self.send(SendAck(cmid, duplicate, results))
                session.send_answered(size)
            case Ack(ref, mids):
                try:
                    server.ack(self.device, mids)
                except MailboxError as error:
                    self._fail(error, ref=ref)
                else:
                    self.send(AckResult(ref, ("acked",) * len(mids)))
                session.ack_answered()
            case Defer(mids):
                self.freed(mids)
            case PullMailbox(ref, cursor, limit):
                try:
                    page = server.pull(self.device, cursor, limit, server.seal(self.device, session.watermark))
                except MailboxError as error:
                    self._fail(error, ref=ref)
                else:
                    self.send(MailboxBatch(ref, page.entries, page.cursor, page.more, page.caught_up))
                session.pull_answered()

    def _hello(self, hello: Hello) -> None:
        server = self._server
        device, token_ends = server.device_of(hello.token)
        server.judge(device)
        server.take_session(self, hello, device)
        self.device, self.instance, self.attempt = device, hello.instance, hello.attempt
        try:
            start = server.open_cursor(device, hello.cursor) if hello.cursor is not None else 0
        except MailboxError:
            start = 0  # no error in HELLO: the session starts at the oldest un-acked entry
        head = server.state.mailboxes[device].head
        rows, _more = server.page(device, start, 1, BATCH_BYTES_MAX)
        reauth_before = token_ends - min(60_000, server.policy.token_ms // 4)
        self._session.welcome(
            start=start,
            head=head,
            pending=bool(rows),
            token_ends_at=token_ends / 1000,
            reauth_at=reauth_before / 1000,
            fresh=True,
        )
        self.send(
            Welcome(
                "session",
                server.now_ms,
                server.policy.heartbeat_s,
                reauth_before,
                server.policy.limits,
                server.seal(device, head),
                bool(rows),
            )
        )
        self._deliver()

    def _reauth(self, token: str) -> None:
        try:
            device, token_ends = self._server.device_of(token)
        except MailboxError as error:
            self._fail(error)
            return
        if device != self.device:
            self._fail(MailboxError(ErrorCode.UNAUTHENTICATED))
            return
        reauth_before = token_ends - min(60_000, self._server.policy.token_ms // 4)
        self._session.reauthenticated(token_ends_at=token_ends / 1000, reauth_at=reauth_before / 1000)
        self.send(PushEvents(({"kind": "reauthenticated", "reauth_before": reauth_before},)))

    def _deliver(self) -> None:
        session, server, device = self._session, self._server, self.device
        assert device is not None
        while not self.ended:
            plan = session.read_wanted()
            rows: list[_Row] = []
            if plan is not None:
                session.read_started()
                rows, more = server.page(device, plan.after, plan.entries_max, plan.bytes_max)
                taken = session.read_finished(rows, server.state.mailboxes[device].head, more)
                rows = rows[taken.start : taken.stop]
            end = session.take_batch()
            if end is not None:
                entries = [encode_entry(row.entry) for row in rows]
                cursor = server.seal(device, end.position)
                self._put(encode_mailbox_batch(None, entries, cursor, end.more, end.caught_up))
            elif plan is None:
                return


def refuse_late(reconnect_after_ms: int) -> tuple[int, str]:
    """The close of a server that is not available."""
    return CloseCode.UNAVAILABLE, come_back_reason(reconnect_after_ms)


def _entry(held: Held) -> Entry:
    body = None if held.echo else held.body
    return Entry(held.mid, held.pv, body, held.accepted_at, held.expires_at, held.pad, held.cmid, held.echo)
