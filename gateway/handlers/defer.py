"""DEFER: "got it, cannot finish it now"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.delivery import Delivery
from protocol.frames import Defer

if TYPE_CHECKING:
    from gateway.session import DeviceSession


class DeferHandler:
    """The window was freed when the frame came in; nothing is deleted, and nothing is answered."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def websocket(self, session: DeviceSession, _frame: Defer, _size: int) -> None:
        session.contact = True
        self._delivery.pump(session)
