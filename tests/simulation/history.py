"""What happened in a world, told to `loadtest.recorder`, and the checks that only a world can make.

It sees every frame and request of every device, so it knows what a server cannot: that no client message id is issued
twice, that nothing is acked that the app has not confirmed, that a send has one outcome, and that none goes out again
that the mailbox, read to the watermark, had shown to be committed (seed 002).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from loadtest.recorder import Attempt, OfferedEnvelope, Recorder
from mailbox_client.engine_io import Submit
from mailbox_client.receipts import Receipt
from protocol.errors import ErrorCode, Outcome
from protocol.fingerprint import echo_mid
from protocol.frames import Entry, Send
from protocol.ids import ClientMessageId, DeviceId, MessageId
from tests.simulation.model_server import SECRET
from tests.simulation.schedule import Schedule

if TYPE_CHECKING:
    from tests.simulation.device import SimDevice
    from tests.simulation.sockets import SimSocket

FAULTS_KEPT: Final = 100
FAULT_NAMES: Final = (
    "lost",
    "duplicated",
    "out_of_order",
    "unexpected",
    "corrupted",
    "refused_but_stored",
    "wrong_answer",
)
SendKey = tuple[DeviceId, ClientMessageId]


class History:
    """`is_committed` says whether the server remembers a send. `order_is_kept` is set by who knows the world."""

    def __init__(self, schedule: Schedule, is_committed: Callable[[SendKey], bool], ttl_default_s: int) -> None:
        self.order_is_kept = True
        self.faults: list[str] = []
        self.recorder = Recorder(app_view=True)
        self._schedule = schedule
        self._is_committed = is_committed
        self._ttl_default_s = ttl_default_s
        self._ids: set[ClientMessageId] = set()
        self._sent_as: dict[MessageId, ClientMessageId] = {}
        self._mids: dict[SendKey, frozenset[MessageId]] = {}
        self._ttl_s: dict[MessageId, int] = {}
        self._attempts: dict[SendKey, Attempt] = {}
        self._requests: dict[tuple[DeviceId, int], ClientMessageId] = {}
        self._committed_at: dict[SendKey, int] = {}
        self._page_read_at: dict[tuple[DeviceId, tuple[int, int]], int] = {}
        self._socket_synced: dict[SimSocket, int] = {}
        self._outcomes: dict[SendKey, str] = {}
        self._decided: set[SendKey] = set()  # the app chose to risk it, or went back in time
        self._forgotten: dict[DeviceId, set[MessageId]] = {}
        self._echoes: set[MessageId] = set()
        self._events = 0
        self._places: dict[MessageId, tuple[DeviceId, ClientMessageId, int]] = {}
        self._highest: dict[tuple[DeviceId, DeviceId], int] = {}  # per recipient and sender: the last place handed over
        self._handed: set[tuple[DeviceId, MessageId]] = set()

    def fault(self, what: str) -> None:
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(f"{what} (at {self._schedule.now} ms)")

    @property
    def is_broken(self) -> bool:
        return bool(self.faults) or any(self.recorder._faults.values())

    # -- ids

    def id_issued(self, cmid: ClientMessageId) -> None:
        if cmid in self._ids:
            self.fault("a client message id was issued twice")
        self._ids.add(cmid)

    def is_echo(self, mid: MessageId) -> bool:
        return mid in self._echoes

    # -- sends

    def submitted(self, device: SimDevice, submit: Submit) -> None:
        """The app's call is durable: its place among the device's sends is fixed."""
        self._events += 1
        for envelope in submit.envelopes:
            self._places[envelope.mid] = device.device, submit.cmid, self._events

    def offered(self, device: SimDevice, send: Send) -> None:
        """A send goes to the network."""
        key = (device.device, send.cmid)
        mids = frozenset(envelope.mid for envelope in send.envelopes)
        if send.cmid not in self._ids:
            self.fault("a send went out under an id that was never issued")
        if not mids <= self._mids.setdefault(key, mids):
            self.fault("a client message id was used for two sends")
        if any(self._sent_as.setdefault(mid, send.cmid) != send.cmid for mid in mids):
            self.fault("an envelope went out under two client message ids")
        self._ttl_s.update((one.mid, one.ttl_s or self._ttl_default_s) for one in send.envelopes)
        self._echoes.add(echo_mid(SECRET, device.device, send.cmid))
        self._attempts[key] = self._offer(device, send)

    def doubled(self, device: SimDevice, send: Send) -> None:
        """The network gives the server a send once more: whatever comes of that, nobody hears of it."""
        self._offer(device, send)

    def _offer(self, device: SimDevice, send: Send) -> Attempt:
        order: object = device.device
        if not self.order_is_kept:
            self._events += 1
            order = self._events
        offered = [OfferedEnvelope(one.to, one.mid, one.body) for one in send.envelopes]
        return self.recorder.offered(device.device, order, offered)

    def accepted(self, device: SimDevice, cmid: ClientMessageId | None, results: tuple[Any, ...]) -> None:
        attempt = self._attempts.get((device.device, cmid)) if cmid is not None else None
        if attempt is not None:
            self.recorder.accepted(attempt, results)

    def refused(self, device: SimDevice, cmid: ClientMessageId, code: ErrorCode, outcome: Outcome | None) -> None:
        attempt = self._attempts.get((device.device, cmid))
        if attempt is not None and code is not ErrorCode.IDEMPOTENCY_KEY_REUSED:
            self.recorder.refused(attempt, not_committed=outcome is Outcome.NOT_COMMITTED)
        # Out of a phone's backup a send may come whole that had gone to a rest of its recipients meanwhile.
        if code is ErrorCode.IDEMPOTENCY_KEY_REUSED and (device.device, cmid) not in self._decided:
            self.fault("the server knows a client message id for another send")

    def told_confirmed(self, device: SimDevice, receipt: Receipt) -> None:
        """The app was told that these are stored: each of them must arrive, whatever the wire said."""
        self.outcome(device, receipt.client_message_id, "confirmed")
        attempt = self._attempts.get((device.device, receipt.client_message_id))
        if attempt is None:
            self.fault("the app was told of a send that never went out")
            return
        records = {record.key[len(record.device) :]: record for record in attempt.records}
        for one in receipt.accepted:
            record = records.get(one.message_id)
            if record is not None and not record.accepted_at:
                self.recorder._accept(record, one.accepted_at, one.accepted_at + 1_000 * self._ttl_s[one.message_id])

    def outcome(self, device: SimDevice, cmid: ClientMessageId, what: str) -> None:
        key = (device.device, cmid)
        if key in self._outcomes:
            self.fault(f"two outcomes of one send: {self._outcomes[key]}, then {what}")
        self._outcomes[key] = what

    def decided(self, device: SimDevice, cmid: ClientMessageId) -> None:
        """The app takes the risk of sending this one again."""
        self._decided.add((device.device, cmid))

    def posted(self, device: SimDevice, request: int, cmid: ClientMessageId) -> None:
        self._requests[device.device, request] = cmid

    def request_cmid(self, device: SimDevice, request: int) -> ClientMessageId | None:
        return self._requests.get((device.device, request))

    # -- messages

    def handed_over(self, device: SimDevice, entry: Entry) -> None:
        if entry.mid not in self._forgotten.get(device.device, ()):
            self.recorder.handed_over(device.device, entry.mid, entry.body)
        self._check_order(device, entry)

    def _check_order(self, device: SimDevice, entry: Entry) -> None:
        """Messages of one sender come in the order of its calls. The recorder is milder: it knows no calls."""
        place = self._places.get(entry.mid)
        if (device.device, entry.mid) in self._handed or place is None or not self.order_is_kept:
            return
        self._handed.add((device.device, entry.mid))
        sender, cmid, number = place
        if (sender, cmid) in self._decided:
            return
        if number < self._highest.get((device.device, sender), 0):
            self.fault("handed over behind a later send of the same sender")
        self._highest[device.device, sender] = number

    def confirmed(self, device: SimDevice, mids: Iterable[MessageId]) -> None:
        again = self._forgotten.get(device.device, set())
        for mid in mids:
            again.discard(mid)
            device.confirmed.add(mid)
            self.recorder.confirmed(device.device, mid)

    def deferred(self, device: SimDevice, mids: Iterable[MessageId]) -> None:
        for mid in mids:
            self.recorder.deferred(device.device, mid)

    def acking(self, device: SimDevice, mids: Iterable[MessageId]) -> None:
        if any(mid not in device.confirmed and not self.is_echo(mid) for mid in mids):
            self.fault("acked what the app had not confirmed")
        self.recorder.acked(device.device, mids)  # from here on the server may forget it, and take it as new again

    # -- the watermark

    def synced(self, socket: SimSocket) -> None:
        """The server read a watermark for this socket: the client can know everything committed before."""
        self._socket_synced[socket] = self._schedule.now

    def page_read(self, device: SimDevice, begins: tuple[int, int]) -> None:
        """The same for the first page of an HTTP session; that of an abandoned one may be read late."""
        self._page_read_at[device.device, begins] = self._schedule.now

    def synced_at(self, device: SimDevice, socket: SimSocket | None = None) -> int | None:
        """When the watermark of this socket, or of the present HTTP session, was read at the server."""
        if socket is not None:
            return self._socket_synced.get(socket)
        return self._page_read_at.get((device.device, device.first_page))

    def send_arrives(self, device: SimDevice, send: Send, synced_at: int | None) -> None:
        """Seed 002: what was committed before a session's watermark must be matched in it, not sent again.

        `synced_at` belongs to the session of the moment in which the client let it go; it may arrive much later.
        """
        key = (device.device, send.cmid)
        committed_at = self._committed_at.get(key)
        if key in self._decided:
            return  # past a day the app may choose to risk it: its echo may have expired
        if committed_at is not None and synced_at is not None and committed_at < synced_at:
            self.fault("a send went out again that the mailbox had shown to be committed")
        self._schedule.after(0, lambda: self.note_commit(key))

    def note_commit(self, key: SendKey) -> None:
        if key not in self._committed_at and self._is_committed(key):
            self._committed_at[key] = self._schedule.now

    # -- going back in time

    def server_restored(self) -> None:
        """What the restored server does not remember was not committed."""
        self._committed_at = {key: at for key, at in self._committed_at.items() if self._is_committed(key)}

    def store_restored(self, device: SimDevice, since: set[MessageId], pending: Iterable[ClientMessageId]) -> None:
        """A device's store, and its app with it, went back to a backup.

        What the app confirmed `since` may come again until it is confirmed again, since neither of them remembers. The
        outcome of what was `pending` in the backup may be told again, and the echo that told of it may be acked by now.
        """
        self._forgotten.setdefault(device.device, set()).update(since)
        for cmid in pending:
            self._decided.add((device.device, cmid))
            self._outcomes.pop((device.device, cmid), None)

    # -- the verdict

    def verdict(self, now_ms: int, vanished: int) -> dict[str, Any]:
        """`vanished`: how many entries restores of the server took away; as many may be lost."""
        verdict = self.recorder.verdict(now_ms=now_ms)
        broken = {name: verdict[name] for name in FAULT_NAMES if verdict[name]}
        if vanished >= int(verdict["lost"]):
            broken.pop("lost", None)
        faults = [*self.faults, *(f"{name}: {count}" for name, count in broken.items())]
        return {
            "ok": not faults,
            "faults": faults[:20],
            "examples": verdict["examples"],
            "handed": verdict["handed_entries"],
        }
