"""A whole world by one seed: devices with crashing processes on their stores, a server, a network, and what is checked.

`run(seed)` plays a storm, then calm weather until everything has come to rest, and gives the faults it saw. The judge
of deliveries is `loadtest.recorder`, as everywhere; `tests.simulation.history` adds what only a world can see.

What is promised when a phone goes back to a backup, and checked: no client message id is issued again, what its app
had not confirmed comes, what it confirmed since comes at most until it is confirmed again, and its friends notice
nothing. What it may see: the outcome of a send that was pending in the backup a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from mailbox_client.engine import Engine
from mailbox_client.engine_io import Prefer, RetryDeferred
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.settings import DAY_MS
from protocol.admission import AdmissionState
from protocol.client_message_id import SKIP_BITS, OrdinalLease
from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.frames import Send
from protocol.ids import DeviceId, MessageId
from tests.simulation.device import SETTINGS, DeviceBackup, SimDevice
from tests.simulation.history import History
from tests.simulation.http_door import HttpDoor
from tests.simulation.model_server import ModelPolicy, ModelServer
from tests.simulation.schedule import Schedule
from tests.simulation.weather import CALM, Weather, storm
from tests.simulation.wire import Wire

REST_PATIENCE_MS: Final = DAY_MS + DAY_MS // 4  # deferred mail comes back with the daily walk
SETTLED_WITHIN_MS: Final = 3_600_000
STANDSTILL_MAX_MS: Final = 90_000


class World:
    """One run. `make_engine` and `reserve` are the seams where tests plant bugs, `wire_breaks` and `dies_at` those
    where they break it at a point of their choice."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        random = self.random = Random(seed)
        self.schedule = Schedule()
        self.crashes = random.choice([0.0, 0.0, 0.02, 0.05])
        self.store_faults = random.choice([0.0, 0.0, 0.0, 0.002, 0.02])
        self.refusals = random.choice([0.0, 0.0, 0.05, 0.3])
        self.server_restores = random.random() < 0.1
        self.phone_restores = not self.server_restores and random.random() < 0.15
        self.standstills = random.random() < 0.15
        small = random.random() < 0.3
        # A request that comes twice may be decided twice: that is harmless only where nothing is refused for good.
        self.doubles = not small and not self.refusals and random.random() < 0.4
        self.weather: Weather = storm(random, doubled=self.doubles)
        self.server = ModelServer(
            lambda: self.schedule.server_ms,
            ModelPolicy(
                pending_entries_max=random.choice([5, 20]) if small else 10_000,
                echo_backlog_max=random.choice([3, 4_096]) if small else 4_096,
                heartbeat_s=random.choice([10, 45]),
                token_ms=random.choice([60_000, 900_000]),
                sends_in_flight=random.choice([1, 4, 256]),
            ),
        )
        self.server.refusals.send = self._refuse
        self.server.refusals.other = self._refuse_other
        self.door = HttpDoor(self.server)
        self.history = History(self.schedule, self._is_committed, self.server.policy.ttl_s_default)
        # A refused and repeated send may be overtaken by those that were in flight with it.
        self.history.order_is_kept = not (self.refusals or small or self.server_restores or self.phone_restores)
        self.impatient = False  # end at the first fault
        self.sends = 0
        self.unknown_resent = 0
        self.make_engine: Callable[..., Engine] = Engine
        self.reserve: Callable[..., OrdinalLease] = reserve
        self.wire_breaks: Callable[[SimDevice, str, int], int | None] = self._breaks_by_weather
        self.dies_at: Callable[[SimDevice, str], bool] = lambda _device, _point: random.random() < self.crashes / 50
        self._standing_still: list[Callable[[], object]] | None = None
        self._vanished = 0
        self.devices: list[SimDevice] = []
        for number in range(random.randint(2, 4)):
            _identity, device = self.server.register(bytes([number]) * 32)
            self.devices.append(SimDevice(self, f"device-{number}", device))

    # -- the run

    def run(self) -> dict[str, Any]:
        """Play the storm, then the calm; the verdict, with `ok` and what was seen."""
        self.begin()
        for _act in range(self.random.randint(15, 80)):
            self.schedule.run_until(self.schedule.now + self.random.choice([1, 10, 100, 1_000, 10_000]))
            self.random.choice(self.devices).act()
            self._something_happens()
            if self.impatient and self.history.is_broken:
                break
        return self.end()

    def begin(self) -> None:
        self._server_backup: AdmissionState | None = None
        self._phone_backup: tuple[SimDevice, DeviceBackup] | None = None
        for device in self.devices:
            device.start()
        self.schedule.every(5_000, self.server.tick)

    def end(self) -> dict[str, Any]:
        """Let it come to rest and judge it."""
        self._calm()
        verdict = self.history.verdict(self.schedule.server_ms, self._vanished)
        return verdict | {"seed": self.seed, "sends": self.sends}

    def _something_happens(self) -> None:
        random = self.random
        event = random.random()
        if event < 0.01:
            self._sleep(random.choice([600_000, 3 * 3_600_000, 30 * 3_600_000]))
        elif event < 0.02:
            self.server.restart(say_goodbye=random.random() < 0.5)
        elif event < 0.03:
            self.server.clean_up()
        elif event < 0.05:
            self.weather = storm(random, doubled=self.doubles)
        elif event < 0.07 and self.server_restores:
            self._restore_server()
        elif event < 0.08 and self.standstills:
            self._stand_still(random.randint(1_000, STANDSTILL_MAX_MS))
        elif event < 0.14 and self.phone_restores:
            self._restore_phone()

    def _sleep(self, milliseconds: int) -> None:
        """A long time without any process: past the dedup windows, past the age of pending sends."""
        for device in self.devices:
            self.random.choice([device.crash, device.close])(milliseconds)
        self.schedule.run_until(self.schedule.now + milliseconds)

    def _calm(self) -> None:
        """Good weather until all is settled: first with apps that look at nothing, then with apps that read all."""
        self.weather = CALM
        self.crashes = self.store_faults = self.refusals = 0.0
        self.doubles = False
        for device in self.devices:
            device.start_again()
            device.step(Prefer(None), RetryDeferred())
        if not self._comes_about(lambda: all(device.settled for device in self.devices), SETTLED_WITHIN_MS):
            self.fault("an app that reads nothing holds its own sends up")
        if not self._comes_about(self._all_is_read, REST_PATIENCE_MS):
            self.fault("it did not come to rest")

    def _comes_about(self, holds: Callable[[], bool], within_ms: int) -> bool:
        """Whether it holds within that time. Devices that are down are started."""
        schedule = self.schedule
        end, pause = schedule.now + within_ms, 100
        while not (self.impatient and self.history.is_broken):
            for device in self.devices:
                device.start_again()
            if holds():
                return True
            if schedule.now >= end:
                return False
            schedule.run_until(schedule.now + pause)
            pause = min(3_600_000, pause * 2)
        return True

    def _all_is_read(self) -> bool:
        for device in self.devices:
            device.read_all()
        return all(device.at_rest for device in self.devices) and self._mailboxes_empty()

    def _mailboxes_empty(self) -> bool:
        now = self.server.now_ms
        return not any(
            mailbox.pending(now) or mailbox.pending(now, echo=True) for mailbox in self.server.state.mailboxes.values()
        )

    # -- what happens to the server and the phones

    def _restore_server(self) -> None:
        if self._server_backup is None:
            self._server_backup = self.server.backup()
            return
        before = self._entries()
        self.server.restore(self._server_backup)
        self._server_backup = None
        self._vanished += len(before - self._entries())
        self.history.server_restored()

    def _entries(self) -> set[tuple[DeviceId, MessageId]]:
        return {(device, mid) for device, mailbox in self.server.state.mailboxes.items() for mid in mailbox.entries}

    def _restore_phone(self) -> None:
        if self._phone_backup is None:
            device = self.random.choice(self.devices)
            self._phone_backup = device, device.backup()
            self.random.choice([device.crash, device.close, lambda: None])()
            return
        device, backup = self._phone_backup
        self._phone_backup = None
        device.restore(backup)

    def _stand_still(self, milliseconds: int) -> None:
        """The database stops answering for a while, as a frozen process does; then it does what it was asked."""
        if self._standing_still is None:
            self._standing_still = []
            self.schedule.after(milliseconds, self._go_on)

    def _go_on(self) -> None:
        asked, self._standing_still = self._standing_still or [], None
        for call in asked:
            call()

    def at_database(self, call: Callable[[], object]) -> None:
        """Now, or when the database goes on."""
        if self._standing_still is None:
            call()
        else:
            self._standing_still.append(call)

    def commit_late(self, device: DeviceId, send: Send) -> None:
        """A send that stood still while its connection ended is carried out all the same."""
        try:
            self.server.send(device, send)
        except MailboxError:
            pass
        self.history.note_commit((device, send.cmid))

    def _is_committed(self, key: tuple[DeviceId, bytes]) -> bool:
        return any(
            actor == key[0] and bytes(cmid) == bytes(key[1]) for actor, _operation, cmid in self.server.state.records
        )

    def _refuse(self, _device: DeviceId, send: Send) -> MailboxError | None:
        if self.random.random() >= self.refusals:
            return None
        kind = self.random.choice(["rate", "pair", "down", "unknown", "bug"])
        if kind == "rate":
            return MailboxError(ErrorCode.RATE_LIMITED, retry_after_ms=300, outcome=Outcome.NOT_COMMITTED)
        if kind == "pair":
            at = [self.random.randrange(len(send.envelopes))]
            return MailboxError(ErrorCode.RATE_LIMITED, at=at, retry_after_ms=300, outcome=Outcome.NOT_COMMITTED)
        if kind == "down":
            return MailboxError(ErrorCode.UNAVAILABLE, outcome=Outcome.NOT_COMMITTED)
        if kind == "unknown":
            return MailboxError(ErrorCode.UNAVAILABLE, outcome=Outcome.UNKNOWN)
        return MailboxError(ErrorCode.INTERNAL, outcome=Outcome.NOT_COMMITTED)

    def _refuse_other(self, _device: DeviceId) -> MailboxError | None:
        if self.random.random() >= self.refusals / 2:
            return None
        code = self.random.choice([ErrorCode.UNAVAILABLE, ErrorCode.RATE_LIMITED])
        return MailboxError(code, retry_after_ms=self.random.choice([None, 500]))

    # -- the network

    def new_wire(self, device: SimDevice) -> Wire:
        return Wire(
            self.schedule,
            lambda: self.weather,
            self.random,
            lambda size: self.wire_breaks(device, "to the server", size),
            lambda size: self.wire_breaks(device, "to the client", size),
        )

    def _breaks_by_weather(self, _device: SimDevice, _lane: str, size: int) -> int | None:
        return self.random.randint(0, size) if self.random.random() < self.weather.cut else None

    def breaks(self, probability: float) -> bool:
        return self.random.random() < probability

    def may_double(self) -> bool:
        return self.doubles and self.random.random() < self.weather.doubled

    def later_once_more(self, call: Callable[[], object]) -> None:
        self.schedule.after(self.random.choice([10, 1_000, 60_000]), lambda: self.at_database(call))

    def latency(self) -> int:
        return self.random.randint(0, self.weather.latency_max_ms)

    # -- small things

    @property
    def seconds(self) -> float:
        return self.schedule.now / 1000

    def new_id(self) -> bytes:
        return self.random.getrandbits(127).to_bytes(16, "big") or bytes(15) + b"\x01"

    def fault(self, what: str) -> None:
        self.history.fault(what)


def reserve(store: MemoryStore, device: DeviceId, server_now_ms: int | None, random: Random) -> OrdinalLease:
    """As the driver does it."""
    return store.reserve_ordinals(
        device, server_now_ms=server_now_ms, ordinals=SETTINGS.lease_ordinals, skip=random.getrandbits(SKIP_BITS)
    )


def run(seed: int) -> dict[str, Any]:
    """One run by its seed."""
    return World(seed).run()
