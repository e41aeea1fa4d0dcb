"""What a scenario gets to work with, and the form of its result."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.accounts import Account, register
from loadtest.processes import Meter
from loadtest.recorder import Recorder
from loadtest.server import Server
from loadtest.swarm import Swarm, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a scenario is run: its own defaults (`Planned.settings`), where the person at the terminal chose nothing."""

    devices: int = 200
    payload_bytes: int = 1024
    seconds: float = 8.0
    warmup_s: float = 3.0
    rate_per_s: int = 500
    stored: tuple[int, ...] = (0, 1_000_000, 5_000_000)  # envelopes that lie there, one step of `growth` each


@dataclass(slots=True)
class Run:
    """One server under test and the devices registered on it so far; `settings` are those of the present scenario."""

    server: Server
    settings: Settings = field(default_factory=Settings)
    _accounts: list[Account] = field(default_factory=list)

    async def accounts(self, count: int) -> Sequence[Account]:
        """The first `count` devices, registering what is missing."""
        missing = count - len(self._accounts)
        if missing > 0:
            self._accounts.extend(await register(self.server.urls[0], missing, tls=self.server.tls))
        return self._accounts[:count]

    def forget_accounts(self) -> None:
        """Start the next scenario with fresh mailboxes: something may be left in these."""
        self._accounts.clear()

    def meter(self) -> Meter:
        """A meter over the server's roles and this process, the load generator."""
        return Meter({**self.server.pids, "load_generator": (os.getpid(),)}, alone=("load_generator",))


Scenario = Callable[[Run], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Planned:
    """A scenario by name, with the server it needs."""

    name: str
    scenario: Scenario
    gateways: int = 1
    policy: tuple[tuple[str, str], ...] = ()  # beside the raised limits
    environment: tuple[tuple[str, str], ...] = ()  # settings of its processes
    settings: Settings = field(default_factory=Settings)
    tls: bool = False


def figures(window: Window, seconds: float) -> dict[str, Any]:
    """Rates and latencies of one measured window."""
    return {
        "seconds": round(seconds, 3),
        "confirmed_per_s": round(window.confirmed / seconds, 1),
        "delivered_per_s": round(window.delivered / seconds, 1),
        "acked_per_s": round(window.acked / seconds, 1),
        "echoes_per_s": round(window.echoes / seconds, 1),
        "latency_ms": window.delivery.summary(),
        "send_ack_ms": window.send_ack.summary(),
    }


def joined(parts: Sequence[Window]) -> Window:
    """Windows one after the other as one."""
    whole = Window(parts[0].started)
    for part in parts:
        whole.confirmed += part.confirmed
        whole.delivered += part.delivered
        whole.echoes += part.echoes
        whole.acked += part.acked
        whole.delivery.merge(part.delivery)
        whole.send_ack.merge(part.send_ack)
    return whole


def judged(swarm: Swarm, recorder: Recorder, *, drained: bool) -> dict[str, Any]:
    """The verdict on a swarm's run."""
    return told(recorder, drained=drained, refusals=swarm.refusals, disconnects=swarm.disconnects)


def told(
    recorder: Recorder, *, drained: bool, refusals: Mapping[str, int], disconnects: Mapping[str, int]
) -> dict[str, Any]:
    """The history's verdict and everything else that makes a run bad; `ok` only if there is nothing.

    Limits are raised for a run, so a refusal is a fault too, and so is a run in which nothing was accepted.
    """
    verdict = recorder.verdict()
    worked = bool(verdict["accepted_entries"]) or not verdict["offered_sends"]
    return {
        "ok": bool(verdict["ok"] and drained and worked and not disconnects and not refusals),
        "drained": drained,
        "lost": verdict["lost"],
        "duplicated": verdict["duplicated"],
        "out_of_order": verdict["out_of_order"],
        "refusals": dict(refusals),
        "disconnects": dict(disconnects),
        "verdict": {key: value for key, value in verdict.items() if key != "ok"},
    }


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """One result from its parts, in their order."""
    return {key: value for part in parts for key, value in part.items()}
