"""REAUTH: a session outlives its token by a fresh one (WIRE, "Token end")."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.database_time import DatabaseTime
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import Reauth
from protocol.ids import DeviceId

if TYPE_CHECKING:
    from gateway.auth import AuthService
    from gateway.session import DeviceSession


class ReauthHandler:
    """A fresh token of the same device moves the session's end; a bad one leaves the old deadline standing."""

    def __init__(
        self, auth: AuthService, database_time: DatabaseTime, call_of_device: Callable[[DeviceId], int]
    ) -> None:
        """`call_of_device`: count one request of a device; 0, or the milliseconds to wait. A signature costs time."""
        self._auth = auth
        self._database_time = database_time
        self._call_of_device = call_of_device

    def websocket(self, session: DeviceSession, frame: Reauth, _size: int) -> None:
        device = session.device
        if device is None:
            raise RuntimeError("a REAUTH comes after HELLO")
        try:
            if refused_ms := self._call_of_device(device):
                raise MailboxError(ErrorCode.RATE_LIMITED, retry_after_ms=refused_ms)
            claims = self._auth.verify(frame.token)
            if claims.device != device:
                raise MailboxError(ErrorCode.UNAUTHENTICATED)
        except MailboxError as error:
            session.answer_error(error)
            return
        session.token_ends_ms = claims.expires_at_ms
        session.state.reauthenticated(
            token_ends_at=self._database_time.monotonic_at(claims.expires_at_ms),
            reauth_at=self._database_time.monotonic_at(claims.reauth_before_ms),
        )
        session.tell({"kind": "reauthenticated", "reauth_before": claims.reauth_before_ms})
