"""Everybody loses the gateway at one moment and comes back: reconnect, HELLO, catch-up."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from time import perf_counter
from typing import Any, Final

from loadtest.descriptors import allow_descriptors
from loadtest.recorder import Recorder
from loadtest.run import Run, judged, merged
from loadtest.scenarios.paced import pace
from loadtest.swarm import Device, Swarm, SwarmFailed, Traffic

SENDING: Final = 50  # of the devices; the others just wait for mail
RATE_PER_S: Final = 200
BEFORE_S: Final = 3.0
AFTER_S: Final = 3.0
BACK_S_MAX: Final = 120.0
BACKOFF_BASE_S: Final = 0.5
BACKOFF_CAP_S: Final = 60.0
# What the contract lets a client meet whose gateway dies and comes back: nobody listens, the connection ends without a
# word, 503 with a come-back time (a full or starting gateway), or a close that says when to come back.
LISTENS_NOT: Final = "nobody listens"
CUT: Final = "ended without a word"
BUSY: Final = "503"
DOCUMENTED: Final = frozenset({LISTENS_NOT, CUT, BUSY, "closed 1001", "closed 1012", "closed 4429", "closed 4503"})


class _Returning:
    """Brings every lost device back as the contract says: the server's time where it gave one, else full jitter."""

    def __init__(self, swarm: Swarm) -> None:
        self.attempts = 0
        self.errors: Counter[str] = Counter()
        self._swarm = swarm
        self._random = random.Random(1)
        self._devices: dict[int, Device] = {device.index: device for device in swarm.devices}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def lost(self, device: Device) -> None:
        """A connection ended: come back, unless that device is on its way already."""
        if device.index not in self._tasks and self._devices.get(device.index) is device:
            self._tasks[device.index] = asyncio.create_task(self._return(device), name=f"return-{device.index}")

    @property
    def away(self) -> int:
        return len(self._tasks)

    @property
    def devices(self) -> list[Device]:
        return list(self._devices.values())

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _return(self, device: Device) -> None:
        index, attempt, come_back_s = device.index, 0, device.come_back_s
        while True:
            ceiling = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2**attempt)
            await asyncio.sleep(self._random.uniform(0, ceiling) if come_back_s is None else come_back_s)
            attempt += 1
            self.attempts += 1
            come_back_s = None
            try:
                device = await self._swarm.open(index)
            except ConnectionRefusedError:
                self.errors[LISTENS_NOT] += 1
                continue
            except OSError as error:
                self.errors[CUT if isinstance(error, ConnectionResetError) else str(error)] += 1
                continue
            try:
                await device.ready
            except SwarmFailed:
                self.errors[_met(device)] += 1
                come_back_s = device.come_back_s
                continue
            self._devices[index] = device
            del self._tasks[index]
            return


async def storm(run: Run) -> dict[str, Any]:
    """`--devices` connections; the gateway is killed under traffic and started again by `mailboxd up`."""
    count = run.settings.devices
    allow_descriptors(count)
    recorder = Recorder()
    sending = range(min(SENDING, count))
    traffic = Traffic(payload_bytes=run.settings.payload_bytes, senders=sending, recipients=range(count))
    swarm = Swarm(await run.accounts(count), run.server.endpoints, traffic, recorder)
    try:
        await swarm.connect()
        senders = [device for device in swarm.devices if device.index in sending]
        pacing = asyncio.create_task(pace(swarm, RATE_PER_S, senders), name="pace")
        await asyncio.sleep(BEFORE_S)
        pacing.cancel()
        returning = _Returning(swarm)
        swarm.on_lost = returning.lost
        swarm.welcomes = type(swarm.welcomes)()
        killed_at = perf_counter()
        _kill_gateway(run)
        back_s = await _all_back(swarm, returning, count, killed_at)
        swarm.devices = returning.devices
        swarm.on_lost = None
        senders = [device for device in swarm.devices if device.index in sending]
        pacing = asyncio.create_task(pace(swarm, RATE_PER_S, senders), name="pace")
        await asyncio.sleep(AFTER_S)
        pacing.cancel()
        verdict = judged(swarm, recorder, drained=await swarm.drain(60.0))
    finally:
        swarm.close()
    problems = {error: times for error, times in returning.errors.items() if error not in DOCUMENTED}
    verdict["ok"] = bool(verdict["ok"] and not problems)
    welcome = swarm.welcomes.summary()
    return merged(
        {"devices": count, "all_back_s": round(back_s, 3), "welcome_ms": welcome, "attempts": returning.attempts},
        {
            "facts": {
                "all back in s:": round(back_s, 3),
                "upgrade to WELCOME, ms:": welcome,
                "tries:": returning.attempts,
                "met on the way:": dict(returning.errors),
            }
        },
        {"errors": dict(returning.errors), "problems": problems},
        verdict,
    )


def _met(device: Device) -> str:
    """How a try ended that had a connection."""
    if device.close_code is not None:
        return f"closed {device.close_code}"
    return BUSY if " 503 " in device.close_reason else device.close_reason or CUT


def _kill_gateway(run: Run) -> None:
    """Kill the one gateway that runs now (it may have been started again since the run began)."""
    data_dir = run.server.data_dir
    if data_dir is None:
        raise SwarmFailed("the processes of a server given by --url are not known")
    (pid,) = json.loads((data_dir / "up.json").read_text())["pids"]["gateways"]
    os.kill(pid, signal.SIGKILL)


async def _all_back(swarm: Swarm, returning: _Returning, count: int, since: float) -> float:
    """Seconds from the kill until every device is caught up again."""
    while swarm.welcomes.count < count or returning.away:
        if perf_counter() - since > BACK_S_MAX:
            await returning.stop()
            raise SwarmFailed(f"{returning.away} of {count} devices were not back within {BACK_S_MAX:.0f} s")
        await asyncio.sleep(0.01)
    return perf_counter() - since
