"""What the client guide says is so: its chat is short, and runs as it stands."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from mailbox_client import events
from tests.support.command import TREE, environment
from tests.support.up import running_up

GUIDE = (TREE / "docs" / "client-guide.md").read_text()
(CHAT,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_the_chat_has_fewer_than_60_lines() -> None:
    assert len(CHAT.splitlines()) < 60


async def test_the_chat_runs_as_it_stands(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.py").write_text(CHAT)
    with running_up(data_dir) as server:

        async def chat(*arguments: str) -> tuple[Process, str]:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "chat.py", server.report["url"], *arguments,
                cwd=tmp_path, env=environment(), stdin=PIPE, stdout=PIPE,
            )  # fmt: skip
            return process, (await line(process)).removeprefix("my address: ")

        async def line(process: Process) -> str:
            assert process.stdout is not None
            async with asyncio.timeout(20):
                return (await process.stdout.readline()).decode().rstrip()

        async def say(process: Process, text: str) -> None:
            assert process.stdin is not None
            process.stdin.write(f"{text}\n".encode())
            await process.stdin.drain()

        async def leave(process: Process) -> int:
            assert process.stdin is not None
            process.stdin.close()
            async with asyncio.timeout(20):
                return await process.wait()

        alice, address_of_alice = await chat("alice")
        bob, address_of_bob = await chat("bob", address_of_alice)
        await say(bob, "hello")
        assert await line(alice) == f"{address_of_bob[:6]}: hello"
        await say(alice, "hello to you")
        assert await line(bob) == f"{address_of_alice[:6]}: hello to you"
        assert await leave(alice) == 0
        await say(bob, "read this later")
        assert await leave(bob) == 0
        alice, same_address = await chat("alice", address_of_bob)
        assert same_address == address_of_alice
        assert await line(alice) == f"{address_of_bob[:6]}: read this later"
        assert await leave(alice) == 0


def test_the_guide_names_every_event_and_no_other() -> None:
    kinds = {
        value.kind
        for value in vars(events).values()
        if isinstance(value, type) and issubclass(value, events.Event) and value is not events.Event
    }
    (named,) = re.findall(r"tell what happens: (.*?)\.", GUIDE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == kinds
