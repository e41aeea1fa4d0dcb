"""HELLO: whose session it is, where it starts, and WELCOME.

The token is judged first, without the database; then the device's wakes are subscribed while the database judges the
takeover, so that by the time of the first read nothing can be committed unheard.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from gateway.connection_registry import ConnectionRegistry
from gateway.database_time import DatabaseTime
from gateway.delivery import Delivery
from gateway.metrics import GatewayMetrics
from gateway.wake_listener import WakeListener
from protocol.cursor import CursorRing
from protocol.errors import CloseCode, ErrorCode, MailboxError
from protocol.frames import Hello, Welcome
from protocol.ids import InstanceId, to_text
from protocol.limits import MAILBOX_FILLING_SHARE, PREKEYS_LOW
from protocol.server_session import Phase, come_back_reason
from store.policy_rules import Policy
from store.sessions import CloseRequest, Opened, OpenRequest, SessionStore, Verdict
from store.wake import Wake, WakeBus, WakeKind

if TYPE_CHECKING:
    from gateway.auth import AuthService, TokenClaims
    from gateway.session import DeviceSession

log = structlog.get_logger(__name__)


class HelloHandler:
    """Opens sessions. One statement in the database a batch of HELLOs, none before the token has proven itself."""

    def __init__(
        self,
        *,
        auth: AuthService,
        sessions: SessionStore,
        registry: ConnectionRegistry,
        delivery: Delivery,
        wake: WakeBus,
        listener: WakeListener,
        policy: Callable[[], Policy],
        cursors: CursorRing,
        instance_id: InstanceId,
        database_time: DatabaseTime,
        heartbeat_s: int,
        draining: Callable[[], bool],
        now: Callable[[], float],
        metrics: GatewayMetrics,
    ) -> None:
        self._auth = auth
        self._sessions = sessions
        self._registry = registry
        self._delivery = delivery
        self._wake = wake
        self._listener = listener
        self._policy = policy
        self._cursors = cursors
        self._instance_id = instance_id
        self._database_time = database_time
        self._heartbeat_s = heartbeat_s
        self._draining = draining
        self._now = now
        self._metrics = metrics

    def websocket(self, session: DeviceSession, frame: Hello, _size: int) -> None:
        """HELLO on a new connection: WELCOME or a close follows."""
        if self._draining():
            self._metrics.hellos.labels(outcome="draining").inc()
            session.close_come_back(CloseCode.UNAVAILABLE)
            return
        try:
            claims = self._auth.verify(frame.token)
            request = self._request(session, frame, claims)
            self._sessions.open(request, lambda opened: self._judged(session, claims, opened))
        except MailboxError as error:
            self._metrics.hellos.labels(outcome="refused").inc()
            session.refuse(error)

    def _request(self, session: DeviceSession, frame: Hello, claims: TokenClaims) -> OpenRequest:
        device = claims.device
        session.device = device
        session.instance = frame.instance
        session.cursors = self._cursors.for_device(self._instance_id, device)
        session.channel = self._listener.listen(device)  # until the connection ends
        start, start_epoch = 0, None
        if frame.cursor is not None:
            try:
                start, _, start_epoch = session.cursors.open(frame.cursor, self._database_time.now_ms())
            except MailboxError:
                start = 0  # no error: the session starts at the oldest un-acked entry
        before = self._registry.of_device(device)
        life_ms = None if before is None else int((self._now() - before.connection.heard_at) * 1000)
        return OpenRequest(device, frame.instance, frame.attempt, life_ms, start, start_epoch)

    def _judged(self, session: DeviceSession, claims: TokenClaims, opened: Opened | MailboxError) -> None:
        if isinstance(opened, MailboxError):
            self._metrics.hellos.labels(outcome="refused").inc()
            session.refuse(opened)
            return
        self._metrics.hellos.labels(outcome=opened.verdict.name.lower()).inc()
        match opened.verdict:
            case Verdict.OPENED:
                self._opened(session, claims, opened)
            case Verdict.UNKNOWN_DEVICE:
                session.refuse(MailboxError(ErrorCode.UNAUTHENTICATED))
            case Verdict.REVOKED:
                session.refuse(MailboxError(ErrorCode.DEVICE_REVOKED))
            case Verdict.LATE_ATTEMPT:
                session.close(CloseCode.TIMEOUT, "late attempt")
            case Verdict.TOO_MANY_TAKEOVERS:
                session.answer_error(MailboxError(ErrorCode.RATE_LIMITED, retry_after_ms=opened.retry_after_ms))
                session.close(CloseCode.RATE_LIMITED, come_back_reason(opened.retry_after_ms))

    def _opened(self, session: DeviceSession, claims: TokenClaims, opened: Opened) -> None:
        device = claims.device
        session.session_epoch = opened.session_epoch
        if not session.connection.is_open or session.state.phase is not Phase.GREETING:
            # It went away while the database judged: nobody delivers to it.
            self._sessions.close(CloseRequest(device, opened.session_epoch, unfinished=True))
            return
        before = self._registry.of_device(device)
        if before is not None and before.session_epoch > opened.session_epoch:
            # Another one of the same device was judged after this one, and its answer came first.
            session.close(CloseCode.REPLACED if before.instance != session.instance else CloseCode.NORMAL)
            return
        session.epoch = opened.epoch
        session.listening = self._listener.needs_no_second_look(session.channel)
        self._database_time.learn(opened.now_ms)
        self._registry.bind(session)
        if before is not None:
            replace(before, session)
        if opened.replaced_epoch:
            self._metrics.takeovers.inc()
            if before is None or before.session_epoch != opened.replaced_epoch:
                self._wake.publish([Wake(device, opened.session_epoch, WakeKind.SESSION)])
        self._welcome(session, claims, opened)

    def _welcome(self, session: DeviceSession, claims: TokenClaims, opened: Opened) -> None:
        policy = self._policy()
        cursors = session.cursors
        if cursors is None:
            raise RuntimeError("cursors are made with the request")
        session.token_ends_ms = claims.expires_at_ms
        session.renewed_at = self._now()
        session.send(
            Welcome(
                session=to_text(secrets.token_bytes(9)),
                now=opened.now_ms,
                heartbeat_s=self._heartbeat_s,
                reauth_before=claims.reauth_before_ms,
                limits=policy.wire_limits(),
                watermark=cursors.seal(opened.head, opened.now_ms, opened.epoch),
                pending=opened.pending,
            )
        )
        session.state.welcome(
            start=opened.start,
            head=opened.head,
            pending=opened.pending,
            token_ends_at=self._database_time.monotonic_at(claims.expires_at_ms),
            reauth_at=self._database_time.monotonic_at(claims.reauth_before_ms),
        )
        self._tell(session, opened, policy)
        session.schedule()
        self._delivery.begin(session)
        session.answered()

    def _tell(self, session: DeviceSession, opened: Opened, policy: Policy) -> None:
        if opened.prekeys_left < PREKEYS_LOW:
            self._delivery.tell_session(session, "prekeys_low", left=opened.prekeys_left)
        if opened.route_gone:
            self._delivery.tell_session(session, "push_route_gone")
        if (
            opened.pending_entries > MAILBOX_FILLING_SHARE * policy.pending_entries_max
            or opened.pending_bytes > MAILBOX_FILLING_SHARE * policy.pending_bytes_max
        ):
            self._delivery.tell_session(session, "mailbox_filling")


def replace(before: DeviceSession, after: DeviceSession) -> None:
    """Close the older of two sessions of one device: silently within one process of the client, else for good."""
    same_process = before.instance is not None and before.instance == after.instance
    before.close(CloseCode.NORMAL if same_process else CloseCode.REPLACED, "replaced")
