"""Processes that die or stop at the places where it matters most: the fault points of runtime/faultpoints.py."""

from __future__ import annotations

import asyncio
import signal
from typing import Final, NamedTuple

import asyncpg

from loadtest.faults.fault import Scene, fault
from loadtest.faults.kills import EVERYTHING, WITH_SLEEPERS
from loadtest.faults.world import Kind, Role

REACHED_S_MAX: Final = 60.0
_POLL_S: Final = 0.01


class Point(NamedTuple):
    """A named place, in which process it lies, and how often it may have been passed before it acts."""

    name: str
    kind: Kind
    at_most: int
    about: str


POINTS: Final = (
    Point("submit.before_call", Kind.GATEWAY, 80, "before the call that stores mail"),
    Point("submit.after_commit", Kind.GATEWAY, 80, "after the commit of mail, before anybody is told"),
    Point("wake.before_publish", Kind.GATEWAY, 60, "between the commit and the publishing of wakes"),
    Point("ack.before_call", Kind.GATEWAY, 60, "before the call that stores ACKs"),
    Point("ack.after_commit", Kind.GATEWAY, 60, "after the commit of ACKs, before anybody is told"),
    Point("session.before_call", Kind.GATEWAY, 3, "before a session is taken"),
    Point("dispatcher.after_commit", Kind.WORKER, 3, "between the commit of a claim and its publication to the stream"),
    Point("job.before_handler", Kind.WORKER, 3, "with a job begun and not executed"),
    Point("job.after_side_effect", Kind.WORKER, 3, "after the push, before it is recorded"),
    Point("job.after_completion", Kind.WORKER, 3, "after the push was recorded"),
    Point("job.before_settle", Kind.WORKER, 3, "before XACK"),
)
_IN_SHORT: Final = ("die-at-submit.after_commit", "die-at-wake.before_publish")


def _roles(scene: Scene, kind: Kind) -> list[Role]:
    return scene.world.gateways if kind is Kind.GATEWAY else scene.world.workers


def _register(point: Point) -> None:
    async def die_there(scene: Scene) -> None:
        role = scene.choice(_roles(scene, point.kind))
        passed = scene.random.randint(1, point.at_most)
        await role.process.stop()
        role.launch(faults=f"{point.name}=kill@{passed}")
        status = await role.died(REACHED_S_MAX)
        scene.check(status == -signal.SIGKILL, f"{role.name} ended with {status} instead of dying at {point.name}")
        await scene.any_moment()
        await role.start()

    async def stop_there(scene: Scene) -> None:
        role = scene.choice(_roles(scene, point.kind))
        passed = scene.random.randint(1, point.at_most)
        await role.process.stop()
        role.launch(faults=f"{point.name}=stop@{passed}")
        await _until_stopped(role)
        await scene.for_s(scene.random.uniform(0.5, 6.0))
        await role.kill()  # armed points act at every passing from then on: it would stop again
        await role.start()

    die_there.__doc__ = f"A {point.kind} dies {point.about}."
    stop_there.__doc__ = f"A {point.kind} stops for seconds {point.about}, and dies there."
    name = f"die-at-{point.name}"
    fault(name, short=name in _IN_SHORT, needs=EVERYTHING, load=WITH_SLEEPERS, rounds=2)(die_there)
    fault(f"stop-at-{point.name}", needs=EVERYTHING, load=WITH_SLEEPERS)(stop_there)


async def _until_stopped(role: Role) -> None:
    async def stopped() -> bool:
        return role.process.is_stopped

    await role.process.until(stopped, what="did not reach its fault point", within_s=REACHED_S_MAX)


for _point in POINTS:
    _register(_point)


@fault("terminate-backends", short=True, needs=EVERYTHING, load=WITH_SLEEPERS, rounds=3)
async def terminate_backends(scene: Scene) -> None:
    """The database's backends are terminated while they run a call: inside submits, ACKs, reads and everything else."""
    terminated = 0
    connection = await scene.world.connect()
    try:
        for _ in range(40):
            await asyncio.sleep(scene.random.uniform(0.0, 0.05))
            terminated += await connection.fetchval(
                "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE application_name LIKE 'mailboxd%' AND state = 'active' AND pid <> pg_backend_pid()"
            )
    except (asyncpg.PostgresConnectionError, OSError) as error:
        scene.check(False, f"the kit's own connection broke: {error}")
    finally:
        await connection.close()
    scene.facts["terminated"] = scene.facts.get("terminated", 0) + terminated
    scene.check(terminated > 0, "no call was met")
