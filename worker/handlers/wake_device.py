"""`wake_device`, version 1: a device has something waiting; push a wake to it unless that is not needed (any more)."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Final, assert_never

import structlog

from protocol.ids import DeviceId
from runtime import faultpoints
from store.audit import AuditOutcome, AuditStore, AuditType
from store.outbox import Job, OutboxStore, Route, WakeRules
from store.postgres import Postgres
from store.push_seal import PushSeal, SealBroken
from worker.push.outcome import Accepted, Gone, Misconfigured, Outcome, Retry, Target
from worker.push.pruning import CONFIRM_SECONDS
from worker.push.sender import NOT_TRIED, PushSender
from worker.retry_policy import RetryPolicy
from worker.wake_decision import Done, Push, Wait, decide, facts_of

logger = structlog.get_logger(__name__)

TASK: Final = ("wake_device", 1)


class WakeDevice:
    """Idempotent by (event, generation): a second run within the repeat time finds the first one's push and waits."""

    def __init__(
        self,
        outbox: OutboxStore,
        postgres: Postgres,
        audit: AuditStore,
        seal: PushSeal,
        sender: PushSender,
        *,
        rules: WakeRules,
        policy_version: Callable[[], int],
        on_route_gone: Callable[[DeviceId], None],
        retry: RetryPolicy | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`on_route_gone` tells the gateways, so that the device hears of it by PUSH_EVENTS."""
        self._outbox = outbox
        self._postgres = postgres
        self._audit = audit
        self._seal = seal
        self._sender = sender
        self._rules = rules
        self._policy_version = policy_version
        self._on_route_gone = on_route_gone
        self._retry = retry or RetryPolicy()
        self._chance = chance

    async def __call__(self, job: Job) -> str:
        match decide(facts_of(job), self._rules):
            case Done(reason):
                await self._outbox.complete(job, reason=reason)
                return reason
            case Wait(until, reason):
                await self._outbox.back_to_pending(job, until=until)
                return reason
            case Push():
                return await self._push(job)
            case never:
                assert_never(never)

    async def _push(self, job: Job) -> str:
        route = job.route
        assert route is not None  # noqa: S101 - without one the decision was Done
        try:
            settings = self._seal.open(job.device, route.provider, route.sealed)
        except SealBroken:
            return await self._recorded(job, route, Misconfigured("seal"))
        # From here on a contact counts as the answer, however late this process gets to record the push.
        began_at = await self._outbox.push_begins(job.device)
        outcome = await self._sender.push(route.provider, Target(route.wake_route_id, settings, route.mode))
        await faultpoints.reach("job.after_side_effect")
        if isinstance(outcome, Accepted):
            await self._outbox.pushed(job, began_at)
            await self._outbox.mark_route(job.device, route, "active")
            await faultpoints.reach("job.after_completion")
            return "pushed"
        return await self._recorded(job, route, outcome)

    async def _recorded(self, job: Job, route: Route, outcome: Outcome) -> str:
        """What is not a success leaves the intent open, unless it is certain that there is no route any more."""
        match outcome:
            case Retry(cause, after):
                tried = cause not in NOT_TRIED  # then the backoff need not grow
                troubles = job.troubles + tried
                wait = after if not tried and after is not None else self._trouble_wait(troubles, after)
                await self._outbox.put_off(job, wait=wait, reason=f"{route.provider} {cause}", troubles=troubles)
                return f"retry_{cause}"
            case Misconfigured(cause):
                troubles = job.troubles + 1
                wait = self._retry.misconfigured.wait(troubles, self._chance())
                await self._outbox.put_off(job, wait=wait, reason=f"{route.provider} {cause}", troubles=troubles)
                await self._outbox.mark_route(job.device, route, "misconfigured")
                return "misconfigured"
            case Gone():
                return await self._gone(job, route)
            case Accepted():
                raise AssertionError("recorded by the caller")
            case never:
                assert_never(never)

    async def _gone(self, job: Job, route: Route) -> str:
        if not self._sender.may_prune(route.provider, route.wake_route_id):
            troubles = job.troubles + 1
            # The second look comes soon; while the provider fails for many, it comes as after any trouble.
            soon = timedelta(seconds=CONFIRM_SECONDS * (1.05 + self._chance() / 4))
            wait = soon if troubles == 1 else self._trouble_wait(troubles, None)
            await self._outbox.put_off(job, wait=wait, reason=f"{route.provider} gone?", troubles=troubles)
            return "gone_unconfirmed"
        async with self._postgres.transaction() as connection:
            if await self._outbox.disable_route(connection, job.device, route):
                await self._audit.record(
                    connection,
                    AuditType.PUSH_ROUTE_GONE,
                    AuditOutcome.DONE,
                    request_id=str(uuid.uuid4()),
                    policy_version=self._policy_version(),
                    actor=job.device,
                    detail={"provider": route.provider},
                )
        self._on_route_gone(job.device)
        # The dispatcher finds no route and ends the intent, or a newer route and goes on.
        await self._outbox.back_to_pending(job, until=job.now)
        return "route_gone"

    def _trouble_wait(self, troubles: int, asked: timedelta | None) -> timedelta:
        return self._retry.trouble_wait(troubles, asked, self._chance())
