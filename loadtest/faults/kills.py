"""Processes that die or stand still at random moments: SIGKILL, SIGSTOP and SIGCONT."""

from __future__ import annotations

from loadtest.faults.fault import Scene, fault
from loadtest.faults.world import Service


@fault("kill-gateway", short=True, needs=(Service.GATEWAY,), rounds=3)
async def kill_gateway(scene: Scene) -> None:
    """A gateway is killed under traffic and started again a moment later."""
    gateway = scene.choice(scene.world.gateways)
    await scene.any_moment()
    await gateway.kill()
    await scene.any_moment()
    await gateway.start()
