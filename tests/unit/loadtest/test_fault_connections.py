"""What the fault kit says of files and connections that are left open: it can fail."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from loadtest.faults import connections
from loadtest.faults.connections import SPARE, Descriptors, over_the_pool
from loadtest.faults.world import Commands, Given, Kind, Role, World, WorldPlan

# Listens on a port, accepts one connection for each line "accept" and opens a file for each line "open".
SERVER = """
import socket, sys
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
held = []
print("ready", flush=True)
for line in sys.stdin:
    held.append(listening.accept() if line.strip() == "accept" else open("/dev/null"))
    print("done", flush=True)
"""


class Server:
    """A gateway's stand-in, told by lines what to hold open."""

    def __init__(self, role: Role) -> None:
        command = [sys.executable, "-c", SERVER, str(role.port)]
        self._popen = role.process.spawn(command, {}, stdin=PIPE)
        self._log = role.process.log
        self._said = 0
        self._answered()

    def tell(self, line: str, times: int = 1) -> None:
        for _ in range(times):
            assert self._popen.stdin is not None
            self._popen.stdin.write(f"{line}\n".encode())
            self._popen.stdin.flush()
            self._answered()

    def end(self) -> None:
        self._popen.kill()
        self._popen.communicate()

    def _answered(self) -> None:
        self._said += 1
        while self._log.read_bytes().count(b"\n") < self._said:
            assert self._popen.poll() is None, self._log.read_text()


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(WorldPlan(), tmp_path, Commands(), Given(postgres_dsn="postgresql://a@127.0.0.1:1/a"))
    made.gateways = [Role(made, Kind.GATEWAY, number) for number in range(2)]
    made.settings = {kind: {"postgres_pool_max": 10} for kind in Kind}
    return made


@pytest.fixture
def server(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(connections, "LEAVE_S_MAX", 0.0)
    made = Server(world.gateways[0])
    yield made
    made.end()


async def test_a_connection_of_a_client_that_a_gateway_forgot_to_close_is_told(world: World, server: Server) -> None:
    files = Descriptors(world)
    with socket.create_connection(("127.0.0.1", world.gateways[0].port)):
        server.tell("accept")
    assert await files.left_behind() == ["gateway-0 still holds 1 connections of clients that are gone"]


async def test_files_that_pile_up_are_told_and_a_few_more_than_when_fresh_are_not(world: World, server: Server) -> None:
    files = Descriptors(world)
    server.tell("open", SPARE)
    assert await files.left_behind() == []
    server.tell("open")
    assert [problem.partition(" has ")[0] for problem in await files.left_behind()] == ["gateway-0"]


def test_connections_to_postgresql_above_the_pools_and_lanes_of_all_gateways_are_told(world: World) -> None:
    assert over_the_pool({"mailboxd gateway": 20, "mailboxd gateway ack": 2, "mailboxd gateway submit": 4}, world) == []
    assert len(over_the_pool({"mailboxd gateway": 21}, world)) == 1
    assert len(over_the_pool({"mailboxd gateway ack": 3}, world)) == 1
    assert len(over_the_pool({"mailboxd gateway submit": 5}, world)) == 1
    assert len(over_the_pool({"mailboxd worker": 1}, world)) == 1, "this world has no worker"


def test_a_pool_of_another_size_is_bounded_by_that_size(world: World) -> None:
    world.plan = WorldPlan(gateway_settings=(("postgres_pool_max", "3"),))
    assert over_the_pool({"mailboxd gateway": 6}, world) == []
    assert len(over_the_pool({"mailboxd gateway": 7}, world)) == 1
