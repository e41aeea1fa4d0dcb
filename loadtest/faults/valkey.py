"""Valkey emptied, moved to another address, and a node of its cluster lost, with and without a replica."""

from __future__ import annotations

import time
from typing import Final

from loadtest.faults.fault import Scene, fault
from loadtest.faults.traffic import Load
from loadtest.faults.valkey_cluster import ValkeyCluster, ValkeyClusterWithReplicas
from loadtest.faults.valkey_server import ValkeyServer
from loadtest.faults.world import Service, WorldPlan

SLEEPERS: Final = Load(sleepers=4)


@fault("valkey-flushed", needs=(Service.REDIS,), load=SLEEPERS, rounds=5)
async def valkey_flushed(scene: Scene) -> None:
    """FLUSHALL under traffic: queue, rates and hints are gone; what was to be done is made again from the outbox."""
    await scene.any_moment()
    await scene.world.owned_valkey.flush()


@fault(
    "valkey-moved",
    needs=(Service.REDIS,),
    plan=WorldPlan(proxied=frozenset({Service.REDIS}), alone=True),
    load=SLEEPERS,
)
async def valkey_moved(scene: Scene) -> None:
    """Valkey is gone and another, empty one stands behind the same name, as after a failover by DNS or by proxy."""
    old = scene.world.owned_valkey
    new = ValkeyServer(scene.world.directory / "valkey-moved", name="valkey-moved")
    await old.kill()
    await scene.any_moment()
    await new.start()
    scene.world.proxy(Service.REDIS).target = ("127.0.0.1", new.port)
    scene.world.valkey = new


def _cluster(scene: Scene) -> ValkeyCluster:
    valkey = scene.world.owned_valkey
    if not isinstance(valkey, ValkeyCluster):
        raise TypeError("this fault needs its own plan's Valkey")
    return valkey


@fault(
    "valkey-cluster-node-lost",
    needs=(Service.REDIS,),
    plan=WorldPlan(make_valkey=ValkeyCluster, alone=True),
    recover_s_max=40.0,
)
async def valkey_cluster_node_lost(scene: Scene) -> None:
    """One of three nodes dies and has no replica: its slots are dead, the sweep carries their mail until it is back."""
    cluster = _cluster(scene)
    node = scene.choice(cluster.nodes)
    scene.facts["had_the_queue"] = node is await cluster.owner_of(await cluster.slot_of_the_queue())
    await node.kill()
    scene.facts["flowed_s"] = round(await scene.traffic.flowing(time.monotonic_ns(), within_s=40.0), 2)
    await scene.for_s(5.0)
    await node.start()
    await cluster.whole()


@fault(
    "valkey-cluster-promotion",
    needs=(Service.REDIS,),
    plan=WorldPlan(make_valkey=ValkeyClusterWithReplicas, alone=True),
    recover_s_max=40.0,
)
async def valkey_cluster_promotion(scene: Scene) -> None:
    """The node that has the queue dies, and its replica is promoted: nobody does anything."""
    cluster = _cluster(scene)
    slot = await cluster.slot_of_the_queue()
    node = await cluster.owner_of(slot)
    await node.kill()
    began = time.monotonic()
    await cluster.promoted(slot, node)
    scene.facts["promotion_s"] = round(time.monotonic() - began, 2)
