"""REAUTH: a session outlives its token by a fresh one (WIRE, "Token end")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.database_time import DatabaseTime
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import Reauth

if TYPE_CHECKING:
    from gateway.auth import AuthService
    from gateway.session import DeviceSession


class ReauthHandler:
    """A fresh token of the same device moves the session's end; a bad one leaves the old deadline standing."""

    def __init__(self, auth: AuthService, database_time: DatabaseTime) -> None:
        self._auth = auth
        self._database_time = database_time

    def websocket(self, session: DeviceSession, frame: Reauth, _size: int) -> None:
        try:
            claims = self._auth.verify(frame.token)
            if claims.device != session.device:
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
