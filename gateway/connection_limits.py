"""How many connections, and how many new ones a second: judged before all other work, and never by evicting anybody.

Who has no token yet costs the database work all the same: upgrades lead to HELLOs, and challenges, tokens and
registrations are writes. Both kinds have a budget of a second each, so that a flood of the one leaves the other alone.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.client_address import is_loopback
from store.policy_rules import Policy


class SecondBudget:
    """So many a second, with at most one second's worth in hand."""

    def __init__(self, per_second: Callable[[], int], now: Callable[[], float]) -> None:
        """`per_second`: 0 for no limit."""
        self._per_second = per_second
        self._now = now
        self._left = float(per_second())
        self._at = now()

    def take(self) -> bool:
        """One more; False when the budget is spent, and then nothing was taken."""
        rate = self._per_second()
        if not rate:
            return True
        now = self._now()
        self._left = min(float(rate), self._left + (now - self._at) * rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class ConnectionLimits:
    """Counts what is connected to this process, WebSocket and HTTP alike."""

    def __init__(
        self, policy: Callable[[], Policy], now: Callable[[], float], *, connections_max: int, loopback_exempt: bool
    ) -> None:
        self._policy = policy
        self._connections_max = connections_max
        self._loopback_exempt = loopback_exempt
        self._by_address: dict[str, int] = {}
        self.upgrades = SecondBudget(lambda: policy().handshakes_per_second, now)
        self.account_requests = SecondBudget(lambda: policy().handshakes_per_second, now)
        self.connections = 0

    @property
    def full(self) -> bool:
        """The process holds all the connections that it may."""
        return self.connections > self._connections_max

    @property
    def overrun(self) -> bool:
        """More than can be answered with a refusal: not even their requests are read."""
        return self.connections > self._connections_max + max(100, self._connections_max // 10)

    def opened(self) -> None:
        self.connections += 1

    def closed(self) -> None:
        self.connections -= 1

    def take_address(self, address: str) -> bool:
        """Count a connection of this client. False when it has all that it may: nothing was counted."""
        limit = self._policy().connections_per_ip
        count = self._by_address.get(address, 0)
        if limit and count >= limit and not self.is_exempt(address):
            return False
        self._by_address[address] = count + 1
        return True

    def is_exempt(self, address: str) -> bool:
        """Whether no limit per address holds this one."""
        return self._loopback_exempt and is_loopback(address)

    def give_back_address(self, address: str) -> None:
        count = self._by_address.get(address, 0) - 1
        if count > 0:
            self._by_address[address] = count
        else:
            self._by_address.pop(address, None)
