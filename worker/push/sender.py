"""Sends a wake over whatever provider the route names: caps, pauses and counts around the provider itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from runtime.clock import Clock
from worker.metrics import WorkerMetrics
from worker.push.circuit import Circuit
from worker.push.outcome import Accepted, Gone, Misconfigured, Outcome, Provider, Retry, Target
from worker.push.pruning import GoneJudge
from worker.push.turns import Turns

PER_HOST_MAX: Final = 8  # pushes at once to one host that clients named: nobody may aim us at somebody
NOT_TRIED: Final = frozenset({"busy", "paused"})  # causes of a Retry without a push
PLATFORMS: Final = frozenset({"apns", "fcm"})  # fixed hosts, made for it


class PushSender:
    """Never raises for what providers do. A slow provider takes a bounded share, the others do not notice."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        metrics: WorkerMetrics,
        clock: Clock,
        *,
        concurrency: int,
    ) -> None:
        """`concurrency`: how many pushes the caller sends at once at most."""
        self._providers = providers
        self._metrics = metrics
        self._clock = clock
        self._per_provider_max = max(1, concurrency // 2)  # the other half is always there for the others
        self._in_flight: Counter[str] = Counter()
        self._circuits = {name: Circuit() for name in providers}
        self._judges = {name: GoneJudge() for name in providers}
        self._turns = {name: Turns(self._host_max(name)) for name in providers}

    async def push(self, provider_name: str, target: Target) -> Outcome:
        """One push. Retry with cause `busy` or `paused` when it was not even tried."""
        outcome = await self._push(provider_name, target)
        label = type(outcome).__name__.lower()
        if isinstance(outcome, Retry) and outcome.cause in NOT_TRIED:
            label = outcome.cause
        self._metrics.pushes.labels(provider_name, label).inc()
        return outcome

    def may_prune(self, provider_name: str, route: bytes) -> bool:
        """After Gone: whether the route may be given up (False: ask the provider again later)."""
        now = self._clock.monotonic()
        judge = self._judges[provider_name]
        may = judge.gone(route, now)
        self._metrics.prunes_held.labels(provider_name).set(judge.holds(now))
        return may

    def _host_max(self, name: str) -> int:
        return self._per_provider_max if name in PLATFORMS else min(PER_HOST_MAX, self._per_provider_max)

    async def _push(self, name: str, target: Target) -> Outcome:
        provider = self._providers.get(name)
        if provider is None:
            return Misconfigured("no_provider")
        host = f"{name} {provider.host(target)}"
        if self._in_flight[host] >= self._host_max(name) or self._in_flight[name] >= self._per_provider_max:
            return Retry("busy", timedelta(seconds=self._turns[name].wait(host, self._clock.monotonic())))
        circuit = self._circuits[name]
        if (pause := circuit.pause_left(host, self._clock.monotonic())) > 0:
            return Retry("paused", timedelta(seconds=pause))
        self._in_flight[host] += 1
        self._in_flight[name] += 1
        began = self._clock.monotonic()
        outcome: Outcome = Retry("interrupted")
        try:
            outcome = await provider.push(target)
        finally:
            now = self._clock.monotonic()
            self._metrics.push_seconds.labels(name).observe(now - began)
            self._turns[name].answered(host, now - began)
            for key in (host, name):
                self._in_flight[key] -= 1
                if not self._in_flight[key]:
                    del self._in_flight[key]
            if isinstance(outcome, Retry):
                circuit.failed(host, now)
            else:
                circuit.succeeded(host)
            self._metrics.provider_open.labels(name).set(circuit.paused(now))
        match outcome:
            case Accepted():
                self._judges[name].accepted(target.wake_route_id, now)
                self._metrics.prunes_held.labels(name).set(self._judges[name].holds(now))
            case Gone() | Retry() | Misconfigured():
                pass
        return outcome
