"""Redis as a cluster of three shards, behind Sentinel, and at another address than before: real servers throughout."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protocol.ids import DeviceId
from runtime.clock import SystemClock
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.diagnosis import read_redis
from store.job_queue import JobQueue, QueueLost, QueueUnreachable
from store.policy_rules import Policy
from store.redis_client import connect
from store.redis_places import RedisPlaces
from store.shared_rates import SharedRates
from store.wake import Wake, WakeBus, WakeNames, lanes_of
from store.wake_link import Heard
from store.wake_subscriber import WakeSubscriber
from store.work_status import read_work
from tests.integration.test_outbox_queue import publications
from tests.integration.test_wake_across_gateways import receive
from tests.support.gateways import Device, GatewayLab, LocalGateway
from tests.support.valkey import LOCAL, ValkeyCluster, ValkeyNode, valkey_cluster, valkey_node, watched_by_sentinel
from tests.support.waiting import eventually
from tests.support.wakes import INSTANCE_TAG, ScriptedProvider, WorkerParts, worker_parts
from worker.bell_listener import BellListener


class Ear:
    """Hears the wakes of some devices, and publishes to them: two gateways in one."""

    def __init__(self, url: str, devices: Collection[DeviceId]) -> None:
        self.redis = connect(url)
        self.names = WakeNames("tag", b"k" * 32, lanes=lanes_of(self.redis))
        self.bus = WakeBus(self.redis, self.names)
        self.devices = {self.names.device(device): device for device in devices}
        self.heard: list[tuple[DeviceId, int]] = []
        self.heard_again: list[set[bytes]] = []
        self.subscriber = WakeSubscriber(
            self.redis,
            SystemClock(),
            on_heard=self._heard,
            on_subscribed=lambda _channel: None,
            on_connected=lambda channels: self.heard_again.append(set(channels)),
        )
        for channel in self.devices:
            self.subscriber.want(channel)
        self._numbers = iter(range(1, 1_000_000))

    def _heard(self, heard: Heard) -> None:
        self.heard.append((self.devices[heard.channel], heard.number))

    async def ready(self) -> None:
        await eventually(
            lambda: all(self.subscriber.hears(channel) for channel in self.devices),
            what="all are subscribed",
        )

    async def carries(self, devices: Iterable[DeviceId], within_seconds: float = 15.0) -> None:
        """A wake for each of them, published now, arrives."""
        number = next(self._numbers)
        self.bus.publish([Wake(device, number) for device in devices])
        expected = {(device, number) for device in devices}
        await eventually(
            lambda: expected <= set(self.heard), within_seconds=within_seconds, what=f"{len(expected)} wakes arrive"
        )

    async def carries_in_the_end(self, devices: Collection[DeviceId]) -> None:
        """As gateways do it: again and again, for a wake that is lost is lost."""

        async def now() -> bool:
            try:
                await self.carries(devices, within_seconds=0.5)
            except AssertionError:
                return False
            return True

        await eventually(now, what="wakes arrive again")

    def on(self, cluster: ValkeyCluster, node: ValkeyNode) -> list[DeviceId]:
        """The devices whose channels live there, as this process last learnt."""
        places = RedisPlaces(self.redis)
        return [
            device
            for channel, device in self.devices.items()
            if places.of_slot(places.slot(channel)) == f"{LOCAL}:{node.port}"
        ]

    def slot(self, device: DeviceId) -> int:
        return RedisPlaces(self.redis).slot(self.names.device(device))


@asynccontextmanager
async def listening(url: str, count: int = 60) -> AsyncIterator[Ear]:
    ear = Ear(url, [DeviceId(os.urandom(16)) for _ in range(count)])
    running = asyncio.create_task(ear.subscriber.run(Progress(SystemClock())))
    try:
        await ear.ready()
        yield ear
        await ear.bus.close()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await ear.redis.aclose()


async def sharded_channels(node: ValkeyNode) -> int:
    return len(await node.client.execute_command("PUBSUB", "SHARDCHANNELS"))


async def test_wakes_are_spread_over_the_shards_of_a_cluster_and_follow_a_slot_that_moves(tmp_path: Path) -> None:
    async with valkey_cluster(tmp_path) as cluster, listening(cluster.url) as ear:
        await ear.carries(ear.devices.values())
        # Each is on one shard, every shard has some, and nothing goes over the bus to all.
        counts = [await sharded_channels(node) for node in cluster.masters]
        assert min(counts) > 0
        assert sum(counts) == len(ear.devices)
        assert [await node.client.execute_command("PUBSUB", "CHANNELS") for node in cluster.masters] == [[], [], []]

        first, second, _ = cluster.masters
        moved = ear.slot(ear.on(cluster, first)[0])
        channels = {channel for channel, device in ear.devices.items() if ear.slot(device) == moved}
        ear.heard_again.clear()
        await cluster.move(moved, second)
        await eventually(
            lambda: any(channels <= heard for heard in ear.heard_again), what="who missed something is told"
        )
        await ear.ready()
        assert channels <= {ear.names.device(device) for device in ear.on(cluster, second)}
        await ear.carries(ear.devices.values())
        assert ear.bus.reachable


async def test_a_lost_shard_takes_only_its_own_wakes_until_its_replica_stands_in(tmp_path: Path) -> None:
    async with valkey_cluster(tmp_path) as cluster, listening(cluster.url) as ear:
        lost = cluster.guarded
        others = [node for node in cluster.masters if node is not lost]
        dead = ear.on(cluster, lost)
        alive = [device for node in others for device in ear.on(cluster, node)]
        ear.heard_again.clear()
        await lost.kill()
        await ear.carries(alive)
        await ear.carries_in_the_end(dead)
        assert set(ear.on(cluster, cluster.replica)) == set(dead)
        assert {ear.names.device(device) for device in dead} <= set().union(*ear.heard_again)
        await eventually(lambda: ear.subscriber.connected and ear.bus.reachable, what="nothing is amiss any more")


@pytest.mark.slow
async def test_a_cluster_that_was_away_altogether_is_used_again(database: str, tmp_path: Path) -> None:
    async with (
        valkey_cluster(tmp_path) as cluster,
        listening(cluster.url) as ear,
        worker_parts(database, cluster.url) as worker,
        rates(ear.redis) as take,
    ):
        provider = worker.provider
        assert isinstance(provider, ScriptedProvider)
        await pushes_one(worker, provider)
        everything = [*cluster.masters, cluster.replica]
        for node in everything:
            await node.kill()
        await eventually(lambda: not ear.subscriber.connected, what="the loss is noticed")
        ear.bus.publish([Wake(device, 0) for device in ear.devices.values()])
        await eventually(lambda: not ear.bus.reachable, what="wakes do not get through")
        assert await take() is None
        for node in everything:
            await node.start()
        await ear.carries_in_the_end(list(ear.devices.values()))
        await eventually(lambda: ear.subscriber.connected and ear.bus.reachable, what="nothing is amiss any more")
        await pushes_one(worker, provider)

        async def taken() -> bool:
            return await take() is not None

        await eventually(taken, what="rates are shared again")


async def test_a_frozen_shard_keeps_no_other_wakes_waiting(tmp_path: Path) -> None:
    async with valkey_cluster(tmp_path) as cluster, listening(cluster.url) as ear:
        frozen = cluster.masters[1]
        alive = [device for node in cluster.masters if node is not frozen for device in ear.on(cluster, node)]
        hanging = ear.on(cluster, frozen)
        frozen.freeze()
        ear.bus.publish([Wake(device, 0) for device in hanging])
        for _ in range(3):
            await ear.carries(alive, within_seconds=4)
        frozen.thaw()
        await ear.carries_in_the_end(hanging)


def on_shard(cluster_redis: Any, lab_names: WakeNames, device: Device, node: ValkeyNode) -> bool:
    places = RedisPlaces(cluster_redis)
    return places.of_slot(places.slot(lab_names.device(device.id))) == f"{LOCAL}:{node.port}"


def silent(gateway: LocalGateway) -> bool:
    return not gateway.gateway.listener.alive


async def test_the_sweep_carries_the_mail_of_a_dead_shard_and_the_canary_tells(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.wake_listener.CANARY_DEAD_S", 2.0)
    monkeypatch.setattr("gateway.wake_listener.CANARY_S", 0.2)
    async with valkey_cluster(tmp_path / "cluster") as cluster, GatewayLab(database, cluster.url, tmp_path) as lab:
        quick = {"sweep_s": 60.0, "sweep_without_redis_s": 0.5}
        async with lab.gateway(**quick) as one, lab.gateway(**quick) as two:
            names, redis = one.gateway.services.wake.names, one.gateway.services.redis
            alice, *others = await lab.devices(13)
            dead = next(node for node in cluster.masters if node is not cluster.guarded)
            orphan = next(device for device in others if on_shard(redis, names, device, dead))
            lucky = next(device for device in others if not on_shard(redis, names, device, dead))
            sender, deaf, hearing = await one.session(alice), await two.session(orphan), await two.session(lucky)
            for client, device in ((deaf, orphan), (hearing, lucky)):
                mid = await sender.deliver(device.id)
                assert await receive(client, 1) == [mid]
            await dead.kill()  # it has no replica
            await eventually(lambda: silent(two), what="the canary of the dead shard is missed")
            lost = await sender.deliver(orphan.id)
            assert (await receive(deaf, 2))[-1] == lost
            found = two.gateway.services.metrics.found_by_sweep
            before = found._value.get()
            assert before >= 1
            mid = await sender.deliver(lucky.id)
            assert (await receive(hearing, 2))[-1] == mid


@pytest.mark.slow
async def test_queue_and_worker_run_on_a_cluster_and_outlive_its_shard(database: str, tmp_path: Path) -> None:
    stream = f"mb:{{{INSTANCE_TAG}}}:jobs".encode()
    async with (
        valkey_cluster(tmp_path, guards=stream) as cluster,
        worker_parts(database, cluster.url) as worker,
    ):
        await queue_works(worker.redis)
        assert (await read_redis(cluster.url)).version >= (7, 2)  # as the doctor looks
        assert (await read_work(worker.stores.postgres, cluster.url, Policy()))["queue"]["waiting"] == 0
        provider = worker.provider
        assert isinstance(provider, ScriptedProvider)
        await pushes_one(worker, provider)

        # The shard with the stream, and all that it had, is lost; the outbox has it still.
        held = await worker.device()
        await worker.submit(held)
        await worker.dispatch()
        assert await cluster.owner(RedisPlaces(worker.redis).slot(stream)) is cluster.guarded
        await cluster.guarded.kill()
        pushed = len(provider.pushed)

        async def pushed_again() -> bool:
            try:
                await worker.turn()
                worker.reconciler.rebuild()
                await worker.reconciler.round()
            except QueueUnreachable:
                return False
            return len(provider.pushed) > pushed

        await eventually(pushed_again, what="the wake that was in the queue goes out")


async def queue_works(redis: Any) -> None:
    """Streams, groups, take-over and their end."""
    one, two = (JobQueue(redis, "queuetest", consumer=name) for name in (b"one", b"two"))
    with pytest.raises(QueueLost):
        await one.receive(1, block_ms=1)
    await one.publish(publications(5))
    assert len(await one.receive(2, block_ms=1)) == 2
    assert len(await two.receive(9, block_ms=1)) == 3
    assert len(await two.receive(9, block_ms=50)) == 0

    taken: list[Any] = []

    async def reclaimed() -> bool:
        taken.extend(await two.reclaim(9, lease_ms=1))
        return len({delivery.event_id for delivery in taken}) == 5

    await eventually(reclaimed, what="both consumers' messages are taken over")
    assert (await one.depth()).messages == 5
    await two.settle([delivery.message_id for delivery in taken])
    assert tuple(await one.depth()) == (0, 0)
    await one.leave()


async def pushes_one(worker: WorkerParts, provider: ScriptedProvider) -> None:
    before = len(provider.pushed)
    await worker.submit(await worker.device())

    async def pushed() -> bool:
        try:
            await worker.turn()
        except QueueUnreachable:
            return False  # its loop would try again
        await worker.reconciler.round()
        return len(provider.pushed) == before + 1

    await eventually(pushed, what="the push goes out")


@asynccontextmanager
async def rates(redis: Any) -> AsyncIterator[Callable[[], Any]]:
    """Gives a call that takes one token of three an hour, over Redis: the milliseconds to wait, None without Redis."""
    shared = SharedRates(redis, prefix="mb:{tag}:", names_key=b"n" * 32, clock=SystemClock())
    running = asyncio.create_task(shared.run(Progress(SystemClock())))
    try:
        yield lambda: shared.take("registrations", b"192.0.2.1", 1, 3 / 3600, 3)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.slow
async def test_shared_rates_hold_on_a_cluster_and_come_back_after_a_failover(tmp_path: Path) -> None:
    async with valkey_cluster(tmp_path, guards=b"mb:{tag}:rate") as cluster:
        redis = connect(cluster.url)
        async with rates(redis) as take:
            waits = [await take() for _ in range(4)]
            assert waits[:3] == [0, 0, 0]
            assert waits[3] > 0
            slot = RedisPlaces(redis).slot(b"mb:{tag}:rate")
            assert await cluster.owner(slot) is cluster.guarded
            await cluster.guarded.kill()

            async def answers() -> bool:
                return await take() is not None

            await eventually(answers, what="Redis is asked again")
        await redis.aclose()


async def test_the_workers_bell_rings_over_a_cluster(tmp_path: Path) -> None:
    async with valkey_cluster(tmp_path) as cluster:
        redis, bell, clock = connect(cluster.url), Doorbell(), SystemClock()
        names = WakeNames("tag", b"k" * 32, lanes=lanes_of(redis))
        listener = asyncio.create_task(BellListener(redis, names.outbox, bell, clock).run(Progress(clock)))
        bus = WakeBus(redis, names)
        try:
            assert await bell.wait(at_most_seconds=30)
            bus.publish_worker()
            assert await bell.wait(at_most_seconds=30)
            slot = RedisPlaces(redis).slot(names.outbox)
            there = await cluster.owner(slot)
            await cluster.move(slot, next(node for node in cluster.masters if node is not there))
            assert await bell.wait(at_most_seconds=30)  # the subscription anew: what came before it was not heard
            while await bell.wait(at_most_seconds=1.5):
                pass
            bus.publish_worker()
            assert await bell.wait(at_most_seconds=30)
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
            await bus.close()
            await redis.aclose()


async def test_a_redis_that_answers_nobody_costs_seconds_and_no_message(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every connection stays open and silent, as behind a lost link: nothing fails, and nothing is heard."""
    monkeypatch.setattr("gateway.wake_listener.CANARY_DEAD_S", 1.0)
    monkeypatch.setattr("gateway.wake_listener.CANARY_S", 0.2)
    quick = {"sweep_s": 60.0, "sweep_without_redis_s": 0.5}
    async with (
        valkey_node(tmp_path / "valkey") as node,
        GatewayLab(database, node.url, tmp_path) as lab,
        lab.gateway(**quick) as one,
        lab.gateway(**quick) as two,
    ):
        alice, bob = await lab.devices(2)
        sender, receiver = await one.session(alice), await two.session(bob)
        node.freeze()
        try:
            for count in (1, 2):
                mid = await sender.deliver(bob.id)
                assert (await receive(receiver, count))[-1] == mid
            await eventually(lambda: silent(two), what="the canary is missed")
        finally:
            node.thaw()
        await eventually(lambda: not silent(one) and not silent(two), what="wakes arrive again")
        mid = await sender.deliver(bob.id)
        assert (await receive(receiver, 3))[-1] == mid


async def test_through_sentinel_everything_follows_the_master(database: str, tmp_path: Path) -> None:
    async with (
        valkey_node(tmp_path / "master", "--repl-diskless-sync-delay", "0") as master,
        valkey_node(tmp_path / "replica") as replica,
    ):
        await replica.client.execute_command("REPLICAOF", LOCAL, master.port)

        async def follows() -> bool:
            return dict(await replica.client.info("replication")).get("master_link_status") == "up"

        await eventually(follows, what="the replica has caught up")
        async with watched_by_sentinel(tmp_path, master.port) as sentinel:

            async def known() -> bool:
                return len(await sentinel.client.execute_command("SENTINEL", "REPLICAS", "mail")) == 1

            await eventually(known, what="the Sentinel knows the replica")
            url = f"redis+sentinel://{LOCAL}:1,{LOCAL}:{sentinel.port}/mail/0"
            async with listening(url, count=3) as ear, worker_parts(database, url) as worker, rates(ear.redis) as take:
                provider = worker.provider
                assert isinstance(provider, ScriptedProvider)
                await ear.carries(ear.devices.values())
                await pushes_one(worker, provider)
                assert await take() == 0

                await master.kill()
                await ear.carries_in_the_end(list(ear.devices.values()))
                assert ear.heard_again
                await pushes_one(worker, provider)

                async def taken() -> bool:
                    return await take() is not None

                await eventually(taken, what="rates are shared again")


async def test_redis_that_comes_back_at_another_address_is_found_by_its_name(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo
    address = LOCAL

    async def by_name(host: str, *arguments: Any, **options: Any) -> Any:
        return await resolve(address if host == "redis.example" else host, *arguments, **options)

    monkeypatch.setattr(loop, "getaddrinfo", by_name)
    async with valkey_node(tmp_path / "here") as here:
        url = f"redis://redis.example:{here.port}/0"
        async with listening(url, count=3) as ear, worker_parts(database, url) as worker:
            provider = worker.provider
            assert isinstance(provider, ScriptedProvider)
            await ear.carries(ear.devices.values())
            await pushes_one(worker, provider)
            await here.kill()
            address = "127.0.0.2"
            async with valkey_node(tmp_path / "there", "--bind", address, LOCAL, port=here.port):
                await ear.carries_in_the_end(list(ear.devices.values()))
                await pushes_one(worker, provider)


def test_a_cluster_url_names_its_nodes_and_what_logs_in() -> None:
    client: Any = connect("redis+cluster://user:p%40ss@one:7000,two:7001")
    assert client.named == [("one", 7000), ("two", 7001)]
    assert set(client.nodes_manager.startup_nodes) == {"one:7000", "two:7001"}
    assert client.connection_kwargs["username"] == "user"
    assert client.connection_kwargs["password"] == "p@ss"
    for bad in ("redis+cluster://", "redis+cluster://one", "redis+cluster://one:7000,two"):
        with pytest.raises(ValueError, match="a cluster URL is"):
            connect(bad)
