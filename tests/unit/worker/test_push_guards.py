"""Circuit, pruning and sender: a provider that fails hurts nobody else and prunes nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import WakeRouteId
from runtime.metrics import Metrics
from tests.support.clock import FakeClock
from worker.metrics import WorkerMetrics
from worker.push.circuit import FAILURES_TO_OPEN, PAUSE_LONGEST_SECONDS, Circuit
from worker.push.outcome import Accepted, Gone, Misconfigured, Outcome, Retry, Target
from worker.push.pruning import CONFIRM_SECONDS, MANY, GoneJudge
from worker.push.sender import PER_HOST_MAX, PushSender


def route(number: int) -> WakeRouteId:
    return WakeRouteId(number.to_bytes(16, "big"))


def target(number: int, host: str = "a") -> Target:
    return Target(route(number), {"url": host}, "background")


class Provider:
    def __init__(self, outcome: Callable[[Target], Outcome] = lambda _target: Accepted()) -> None:
        self.outcome = outcome
        self.pushed = 0
        self.hold: asyncio.Event | None = None

    def host(self, target: Target) -> str:
        return target.settings["url"]

    async def push(self, target: Target) -> Outcome:
        self.pushed += 1
        if self.hold is not None:
            await self.hold.wait()
        return self.outcome(target)


def a_sender(clock: FakeClock, concurrency: int = 64, **providers: Provider) -> PushSender:
    return PushSender(providers, WorkerMetrics(Metrics()), clock, concurrency=concurrency)


def test_a_target_that_fails_again_and_again_is_left_alone_longer_and_longer() -> None:
    circuit, now, pauses = Circuit(), 0.0, []
    for _ in range(FAILURES_TO_OPEN - 1):
        circuit.failed("a", now)
        assert circuit.pause_left("a", now) == 0
    for _ in range(8):
        circuit.failed("a", now)
        pauses.append(circuit.pause_left("a", now))
        now += pauses[-1]
        assert circuit.pause_left("a", now) == 0  # one goes first …
        assert circuit.pause_left("a", now) > 0  # … and the others wait for how it fares
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_LONGEST_SECONDS
    circuit.succeeded("a")
    assert [circuit.pause_left("a", now) for _ in range(3)] == [0, 0, 0]


def test_targets_are_judged_apart() -> None:
    circuit = Circuit()
    for _ in range(20):
        circuit.failed("a", 0.0)
    assert (circuit.pause_left("a", 1.0) > 0, circuit.pause_left("b", 1.0), circuit.paused(1.0)) == (True, 0.0, 1)


@given(
    events=st.lists(st.tuples(st.booleans(), st.floats(0, 300)), max_size=60),
)
def test_a_circuit_never_closes_for_longer_than_its_longest_pause(events: list[tuple[bool, float]]) -> None:
    circuit, now = Circuit(), 0.0
    for failed, wait in events:
        now += wait
        if failed:
            circuit.failed("a", now)
        else:
            circuit.succeeded("a")
        assert 0 <= circuit.pause_left("a", now) <= PAUSE_LONGEST_SECONDS


def test_one_route_is_pruned_when_it_is_called_gone_twice() -> None:
    judge = GoneJudge()
    assert not judge.gone(route(1), 0.0)
    assert not judge.gone(route(1), CONFIRM_SECONDS / 2)
    assert judge.gone(route(1), CONFIRM_SECONDS)


def test_an_accepted_push_in_between_takes_the_verdict_back() -> None:
    judge = GoneJudge()
    judge.gone(route(1), 0.0)
    judge.accepted(route(1), 1.0)
    assert not judge.gone(route(1), 60.0)


def test_a_provider_that_fails_for_everybody_prunes_nobody() -> None:
    judge = GoneJudge()
    for number in range(50):
        judge.gone(route(number), number / 50)
    verdicts = [judge.gone(route(number), 60.0 + again) for again in range(0, 3000, 60) for number in range(50)]
    assert not any(verdicts)
    assert judge.holds(3000.0)


def test_many_dead_routes_among_more_living_ones_are_pruned() -> None:
    judge = GoneJudge()
    for number in range(100, 200):
        judge.accepted(route(number), 0.0)
    for number in range(20):
        judge.gone(route(number), 0.0)
    assert all(judge.gone(route(number), CONFIRM_SECONDS) for number in range(20))


def test_an_outage_is_over_when_the_provider_accepts_again() -> None:
    judge = GoneJudge()
    for number in range(MANY * 4):
        judge.gone(route(number), 0.0)
    for number in range(1, MANY * 4):
        judge.accepted(route(number), 100.0)
    assert not judge.holds(100.0)
    assert judge.gone(route(0), 100.0)


@pytest.mark.parametrize("size", [1, MANY - 1])
def test_a_small_instance_can_prune_all_its_few_routes(size: int) -> None:
    judge = GoneJudge()
    for number in range(size):
        judge.gone(route(number), 0.0)
    assert all(judge.gone(route(number), CONFIRM_SECONDS) for number in range(size))


async def test_no_host_gets_more_than_its_share_at_once(clock: FakeClock) -> None:
    provider = Provider()
    provider.hold = asyncio.Event()
    sender = a_sender(clock, gateway=provider)
    tasks = [asyncio.create_task(sender.push("gateway", target(number))) for number in range(PER_HOST_MAX + 5)]
    await asyncio.sleep(0)
    elsewhere = asyncio.create_task(sender.push("gateway", target(99, host="b")))
    await asyncio.sleep(0)
    assert provider.pushed == PER_HOST_MAX + 1
    provider.hold.set()
    outcomes = await asyncio.gather(*tasks, elsewhere)
    assert sum(isinstance(outcome, Accepted) for outcome in outcomes) == PER_HOST_MAX + 1
    assert {outcome.cause for outcome in outcomes if isinstance(outcome, Retry)} == {"busy"}


async def test_who_is_turned_away_comes_back_in_turn_as_fast_as_the_host_answers(clock: FakeClock) -> None:
    provider = Provider()
    provider.hold = asyncio.Event()
    sender = a_sender(clock, gateway=provider)
    held = [asyncio.create_task(sender.push("gateway", target(number))) for number in range(PER_HOST_MAX)]
    await asyncio.sleep(0)
    waits = []
    for number in range(400):
        outcome = await sender.push("gateway", target(number))
        assert isinstance(outcome, Retry)
        assert outcome.after is not None
        waits.append(outcome.after.total_seconds())
    assert waits == sorted(waits)
    assert waits[0] >= 0.5
    # As many a second as the host takes at 0.2 s an answer, not all of them again after one second.
    assert waits[-1] - waits[0] == pytest.approx(399 * 0.2 / PER_HOST_MAX)
    provider.hold.set()
    await asyncio.gather(*held)


async def test_the_platforms_own_hosts_take_as_many_as_their_provider_may(clock: FakeClock) -> None:
    provider = Provider()
    provider.hold = asyncio.Event()
    sender = a_sender(clock, 64, fcm=provider)
    tasks = [asyncio.create_task(sender.push("fcm", target(number))) for number in range(40)]
    await asyncio.sleep(0)
    assert provider.pushed == 32
    provider.hold.set()
    await asyncio.gather(*tasks)


async def test_a_slow_provider_leaves_half_of_all_pushes_to_the_others(clock: FakeClock) -> None:
    slow, quick = Provider(), Provider()
    slow.hold = asyncio.Event()
    sender = a_sender(clock, 8, slow=slow, quick=quick)
    tasks = [asyncio.create_task(sender.push("slow", target(n, host=f"h{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    assert slow.pushed == 4
    assert await sender.push("quick", target(1)) == Accepted()
    slow.hold.set()
    await asyncio.gather(*tasks)


async def test_a_provider_that_is_down_is_not_asked_again_and_again(clock: FakeClock) -> None:
    down, well = Provider(lambda _target: Retry("timeout")), Provider()
    sender = a_sender(clock, down=down, well=well)
    outcomes = [await sender.push("down", target(number)) for number in range(100)]
    assert down.pushed == FAILURES_TO_OPEN
    assert outcomes[-1] == Retry("paused", timedelta(seconds=5))
    assert await sender.push("well", target(1)) == Accepted()
    down.outcome = lambda _target: Accepted()
    clock.move(6)
    assert await sender.push("down", target(1)) == Accepted()
    assert await sender.push("down", target(2)) == Accepted()


async def test_an_outage_that_says_gone_holds_all_prunes_and_shows_it(clock: FakeClock) -> None:
    provider = Provider(lambda _target: Gone())
    metrics = WorkerMetrics(Metrics())
    sender = PushSender({"gateway": provider}, metrics, clock, concurrency=64)
    for _ in range(3):
        for number in range(30):
            assert isinstance(await sender.push("gateway", target(number)), Gone)
            assert not sender.may_prune("gateway", route(number))
        clock.move(60)
    assert metrics.prunes_held.labels("gateway")._value.get() == 1


async def test_a_provider_that_this_worker_does_not_have_is_a_misconfiguration(clock: FakeClock) -> None:
    assert await a_sender(clock).push("apns", target(1)) == Misconfigured("no_provider")


async def test_a_bug_in_a_provider_frees_its_place(clock: FakeClock) -> None:
    def broken(_target: Target) -> Outcome:
        raise ValueError("bug")

    provider = Provider(broken)
    sender = a_sender(clock, gateway=provider)
    for number in range(PER_HOST_MAX * 2):
        clock.move(1_000)
        with pytest.raises(ValueError):
            await sender.push("gateway", target(number))
