"""A whole world by one seed: devices with crashing processes on their stores, a server, a network, and what is checked.

`run(seed)` plays a storm, then calm weather until everything has come to rest, and gives the faults it saw. The judge
of deliveries is `loadtest.recorder`, as everywhere; the world itself checks what only it can see: that no id is used
twice, that nothing is acked that the app has not confirmed, and that no send goes out again that the mailbox, read to
the watermark, had shown to be committed (seed 002).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Final

from loadtest.recorder import OfferedEnvelope, Recorder
from mailbox_client.client_message_ids import NO_ID, ClientMessageIds
from mailbox_client.engine import Engine
from mailbox_client.engine_io import (
    Abandon,
    AckAnswered,
    CloseSocket,
    Confirm,
    DeferMessages,
    FetchToken,
    Forget,
    FrameReceived,
    GetPage,
    HandOver,
    Input,
    Notify,
    OpenSocket,
    Output,
    PostAck,
    PostSend,
    Prefer,
    PullAnswered,
    PutFrame,
    RequestFailed,
    Resend,
    RetryDeferred,
    ReturnMessages,
    SendAnswered,
    ServerTimeKnown,
    Start,
    Stop,
    Submit,
    TakeMessages,
    Tick,
    TokenFailed,
    TokenGiven,
    Woke,
)
from mailbox_client.errors import StopReason
from mailbox_client.events import Event, SendConfirmed, SendOutcomeUnknown, SendsRefused, Stopped, Transport
from mailbox_client.local_store import MessageState, StoredMessage, StoreFault
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.settings import DAY_MS, ClientSettings
from protocol.client_message_id import SERVER_TIME_SHIFT
from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.fingerprint import echo_mid
from protocol.frames import Ack, Error, Send, SendAck, SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId
from protocol.limits import PULL_LIMIT_DEFAULT
from tests.simulation.model_server import SECRET, ModelPolicy, ModelServer
from tests.simulation.network import CALM, Schedule, SimSocket, Weather, storm

SETTINGS: Final = ClientSettings(
    window_entries=8,
    window_bytes=4_096,
    hand_over_batch=4,
    pending_max=64,
    lease_ordinals=8,
    socket_retry_base_ms=10_000,
    socket_retry_cap_ms=60_000,
    unconfirmed_max=32,
    page_limit=5,
)
REST_PATIENCE_MS: Final = 3 * DAY_MS
ReserveOrdinals = Callable[..., object]


class ShakyStore(MemoryStore):
    """A memory store whose commits fail now and then, as a full disk makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[], bool] = lambda: False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction():
            yield
            if self.fails():
                raise StoreFault("the disk is full")


class SimClient:
    """One device: its store outlives its processes. `make_engine` is what a planted bug replaces."""

    def __init__(self, world: World, name: str, device: DeviceId) -> None:
        self.world = world
        self.name = name
        self.device = device
        self.store = ShakyStore()
        self.store.fails = lambda: world.random.random() < world.store_faults
        self.engine: Engine | None = None
        self.ids: ClientMessageIds | None = None
        self.in_hand: list[StoredMessage] = []
        self.confirmed: set[MessageId] = set()
        self.stopped: StopReason | None = None
        self._process = 0
        self._socket: SimSocket | None = None
        self._requests: set[int] = set()
        self._tick_at: int | None = None
        self._numbers: Iterator[int] = count(1)
        self.first_page = (0, 0)  # process and request: of the page that begins the present HTTP session

    # -- processes

    def start(self) -> None:
        self._process += 1
        self._numbers = count(1)
        self.in_hand.clear()
        self.stopped = None
        self._requests.clear()
        self._tick_at = None
        try:
            self.ids = ClientMessageIds(
                self.device,
                self.world.reserve(self.store, self.device, None),
                outstanding_max=SETTINGS.outstanding_max,
            )
            self.engine = self._make(after_crash=True)
        except StoreFault:
            self.engine = None
            self.world.schedule.after(1_000, self.start_again)
            return
        self.step(Start())

    def start_again(self) -> None:
        if self.engine is None:
            self.start()

    def _make(self, *, after_crash: bool) -> Engine:
        return self.world.make_engine(
            self.store,
            SETTINGS,
            random=self.world.random.random,
            instance=self._instance(),
            numbers=self._numbers,
            after_crash=after_crash,
        )

    def _instance(self) -> bytes:
        return self.device[:8] + self._process.to_bytes(8, "big")

    def crash(self, away_ms: int | None = None) -> None:
        """The process dies here and now. Nothing of it is left but the store."""
        if self.engine is None:
            return
        self.engine = None
        if self._socket is not None:
            self._socket.crash()
            self._socket = None
        self._process += 1
        self._requests.clear()
        away_ms = self.world.random.choice([1, 1_000, 60_000]) if away_ms is None else away_ms
        self.world.schedule.after(away_ms, self.start_again)

    def close(self, away_ms: int | None = None) -> None:
        """A clean end: what is in hand and unconfirmed is given back."""
        if self.engine is None:
            return
        self.step(ReturnMessages(tuple(message.entry.mid for message in self.in_hand)), Stop())
        self.crash(away_ms)

    # -- the driver, as mailbox_client.driver does it

    def step(self, *inputs: Input) -> bool:
        """One step of the engine; False if nothing of it was kept."""
        engine = self.engine
        if engine is None:
            return False
        world = self.world
        try:
            outputs = engine.step(world.schedule.now, [*inputs, Tick()])
        except StoreFault:
            self._start_engine_again()
            return False
        self._note_inputs(inputs)
        if world.random.random() < world.crashes / 20:
            self.crash()  # after the commit, before a byte of it goes out
            return True
        for output in outputs:
            if self.engine is engine:
                self._carry_out(output)
        if self.engine is engine:
            self._renew_lease(outputs)
            self._plan_tick(engine)
        return True

    def _start_engine_again(self) -> None:
        if self._socket is not None:
            self._socket.leave(at_once=True)
            self._socket = None
        self._requests.clear()
        self.engine = None
        for _try in range(20):
            try:
                self.engine = self._make(after_crash=False)
                break
            except StoreFault:
                continue
        self._tick_at = None
        self.step(Start())

    def _plan_tick(self, engine: Engine) -> None:
        due = engine.next_due(self.world.schedule.now)
        if due is None or (self._tick_at is not None and self.world.schedule.now < self._tick_at <= due):
            return
        at = self._tick_at = max(due, self.world.schedule.now + 1)
        process = self._process

        def tick() -> None:
            if process == self._process and at == self._tick_at:
                self._tick_at = None
                self.step()

        self.world.schedule.after(at - self.world.schedule.now, tick)

    def _renew_lease(self, outputs: list[Output]) -> None:
        ids = self.ids
        assert ids is not None
        known = next((output.server_now_ms for output in outputs if isinstance(output, ServerTimeKnown)), None)
        if known is not None and ids.current_first < known << SERVER_TIME_SHIFT:
            ids.start_again_at(self.world.reserve(self.store, self.device, known))
        elif ids.wants_lease and self.engine is not None:
            now = self.engine.server_now(self.world.schedule.now)
            ids.add_lease(self.world.reserve(self.store, self.device, now))

    def _note_inputs(self, inputs: tuple[Input, ...]) -> None:
        """The step is durable: tell the recorder what the app and the wire now know."""
        for one in inputs:
            match one:
                case FrameReceived(_, SendAck(cmid, _, results)):
                    self.world.send_accepted(self, cmid, results)
                case SendAnswered(request, _, results):
                    self.world.send_accepted(self, self.world.request_cmid(self, request), results)
                case FrameReceived(_, Error(code=code, cmid=bytes() as cmid, outcome=outcome)):
                    self.world.send_refused(self, ClientMessageId(cmid), code, outcome)
                case RequestFailed(request, MailboxError() as error):
                    failed = self.world.request_cmid(self, request)
                    if failed is not None:
                        self.world.send_refused(self, failed, error.code, error.outcome)
                case Confirm(mids):
                    for mid in mids:
                        self.confirmed.add(mid)
                        self.world.recorder.confirmed(self.device, mid)
                case DeferMessages(mids):
                    for mid in mids:
                        self.world.recorder.deferred(self.device, mid)
                case _:
                    pass

    def _carry_out(self, output: Output) -> None:
        world = self.world
        match output:
            case OpenSocket(number):
                self._socket = SimSocket(world, self, number)
            case PutFrame(_, frame):
                if isinstance(frame, Send):
                    world.send_offered(self, frame)
                elif isinstance(frame, Ack):
                    self._check_ack(frame.mids)
                if self._socket is not None:
                    self._socket.put(frame)
            case CloseSocket(_, at_once):
                if self._socket is not None:
                    self._socket.leave(at_once=at_once)
                    self._socket = None
            case FetchToken(request):
                self._request(request, lambda: self._token(request), lambda error: TokenFailed(request, error))
            case GetPage(request, cursor, wait_s, until):
                assert self.engine is not None
                reading = self.engine._reading
                begins = (self._process, request)
                first = reading.is_page(request) and reading._watermark is None
                if first:
                    self.first_page = begins
                self._request(
                    request,
                    lambda: self._page(request, cursor, until, begins if first else None),
                    lambda error: RequestFailed(request, error),
                    wait_ms=wait_s * 1000,
                )
            case PostSend(request, send):
                world.send_offered(self, send)
                world.note_request(self, request, send.cmid)
                synced_at = world.synced_at(self)
                self._request(
                    request,
                    lambda: self._post(request, send, synced_at),
                    lambda error: RequestFailed(request, error),
                )
            case PostAck(request, mids):
                self._check_ack(mids)
                self._request(
                    request, lambda: self._acknowledge(request, mids), lambda error: RequestFailed(request, error)
                )
            case Abandon(request):
                self._requests.discard(request)
            case HandOver(messages):
                for message in messages:
                    world.recorder.handed_over(self.device, message.entry.mid, message.entry.body)
                self.in_hand += messages
            case Notify(event):
                self._event(event)
            case _:
                pass

    def _check_ack(self, mids: tuple[MessageId, ...]) -> None:
        for mid in mids:
            if mid not in self.confirmed and not self.world.is_echo(mid):
                self.world.fault("acked what the app had not confirmed")

    def _event(self, event: Event) -> None:
        match event:
            case SendConfirmed(receipt):
                self.world.outcome(self, receipt.client_message_id, "confirmed")
            case SendsRefused(cmid, _, True):
                self.world.outcome(self, cmid, "refused")
            case SendOutcomeUnknown(cmid):
                decision = self.world.random.choice([Resend, Forget])
                self.world.decided.add((self.device, cmid))
                self.world.schedule.after(5, lambda: self.step(decision(cmid)))
            case Stopped(reason):
                self.stopped = reason
            case _:
                pass

    # -- HTTP

    def _request(
        self,
        request: int,
        call: Callable[[], Input],
        failed: Callable[[MailboxError | None], Input],
        *,
        wait_ms: int = 0,
    ) -> None:
        world, weather, process = self.world, self.world.weather, self._process
        self._requests.add(request)

        def answer(one: Input) -> None:
            if process == self._process and request in self._requests:
                self._requests.discard(request)
                self.step(one)

        if world.random.random() < weather.request_lost:
            world.schedule.after(world.random.choice([10, 30_000]), lambda: answer(failed(None)))
            return
        lost = world.random.random() < weather.answer_lost

        def arrive() -> None:
            try:
                result = call()
            except MailboxError as error:
                result = failed(error)
            if isinstance(result, PullAnswered) and not result.page.entries and wait_ms:
                world.schedule.after(min(wait_ms, 5_000), lambda: answer(call_again()))
                return
            if lost:
                world.schedule.after(30_000, lambda: answer(failed(None)))
            else:
                world.schedule.after(world.latency(), lambda: answer(result))

        def call_again() -> Input:
            try:
                return call()
            except MailboxError as error:
                return failed(error)

        world.schedule.after(world.latency(), arrive)

    def _token(self, request: int) -> Input:
        token, _ends, reauth_before = self.world.server.make_token(self.device)
        self._last_token = token
        now = self.world.server.now_ms
        return TokenGiven(request, token, reauth_before - now, now)

    def _page(self, request: int, cursor: str | None, until: str | None, begins: tuple[int, int] | None) -> Input:
        page = self.world.server.pull(self.device, cursor, PULL_LIMIT_DEFAULT if until is None else 5, until)
        if begins is not None:
            self.world.page_read(self, begins)
        return PullAnswered(request, page)

    def _post(self, request: int, send: Send, synced_at: int | None) -> Input:
        self.world.send_arrives(self, send, synced_at)
        duplicate, results = self.world.server.send(self.device, send)
        return SendAnswered(request, duplicate, results)

    def _acknowledge(self, request: int, mids: tuple[MessageId, ...]) -> Input:
        self.world.server.ack(self.device, mids)
        return AckAnswered(request)

    # -- the app

    def act(self) -> None:
        """Something an app might do."""
        random = self.world.random
        if self.engine is None:
            return
        if self.stopped is not None:
            self.stopped = None
            self.step(Start())
            return
        choice = random.random()
        if choice < 0.45:
            self.send()
        elif choice < 0.65:
            self.step(TakeMessages(random.choice([1, 4])))
        elif choice < 0.85 and self.in_hand:
            random.shuffle(self.in_hand)
            done = self.in_hand[: random.randint(1, len(self.in_hand))]
            self.settle(done, Confirm)
        elif choice < 0.88 and self.in_hand:
            self.settle([random.choice(self.in_hand)], DeferMessages)
        elif choice < 0.90:
            self.step(RetryDeferred())
        elif choice < 0.93:
            self.step(Woke())
        elif choice < 0.95:
            self.step(Prefer(random.choice([None, None, Transport.HTTP, Transport.WEBSOCKET])))
        elif choice < 0.95 + self.world.crashes:
            random.choice([self.crash, self.close])()

    def settle(self, messages: list[StoredMessage], how: type[Confirm] | type[DeferMessages]) -> None:
        process = self._process
        if self.step(how(tuple(message.entry.mid for message in messages))) and process == self._process:
            self.in_hand = [message for message in self.in_hand if message not in messages]

    def send(self) -> None:
        world, random = self.world, self.world.random
        assert self.engine is not None
        assert self.ids is not None
        if self.engine.pending >= SETTINGS.pending_max:
            return
        cmid = self.ids.issue()
        if cmid == NO_ID:
            return
        world.note_id(cmid)
        self.ids.consume(cmid)
        envelopes = []
        for peer in random.sample(world.clients, random.randint(1, min(3, len(world.clients)))):
            body = world.new_bytes(random.choice([0, 10, 700]))
            ttl_s = random.choice([None, None, None, 3_600])
            envelopes.append(SendEnvelope(peer.device, MessageId(world.new_id()), 1, body, ttl_s))
        world.sends += 1
        self.step(Submit(cmid, tuple(envelopes), True))

    def read_all(self) -> None:
        """In calm weather: take and confirm whatever comes."""
        if self.stopped is not None and self.engine is not None:
            self.stopped = None
            self.step(Prefer(None), Start())
        self.step(TakeMessages(100))
        if self.in_hand:
            self.settle(list(self.in_hand), Confirm)

    @property
    def at_rest(self) -> bool:
        if self.engine is None or self.engine.pending or self.in_hand:
            return False
        with MemoryStore.transaction(self.store):
            return not (self.store.in_state(MessageState.HELD) or self.store.acks_owed())


class World:
    """One run. `make_engine` and `reserve` are the seams where tests plant bugs."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.schedule = Schedule()
        self.weather: Weather = storm(self.random)
        self.crashes = self.random.choice([0.0, 0.0, 0.02, 0.05])
        self.store_faults = self.random.choice([0.0, 0.0, 0.0, 0.002, 0.02])
        self.refusals = self.random.choice([0.0, 0.0, 0.05, 0.3])
        self.restores = self.random.random() < 0.1
        small = self.random.random() < 0.3
        self.server = ModelServer(
            lambda: self.schedule.server_ms,
            ModelPolicy(
                pending_entries_max=self.random.choice([5, 20]) if small else 10_000,
                heartbeat_s=self.random.choice([10, 45]),
                token_ms=self.random.choice([60_000, 900_000]),
                sends_in_flight=self.random.choice([1, 4, 256]),
            ),
        )
        self.server.refusals.send = self._refuse
        self.recorder = Recorder(app_view=True)
        self.faults: list[str] = []
        self.sends = 0
        self.make_engine: Callable[..., Engine] = Engine
        self.reserve: ReserveOrdinals = _reserve
        self._ids_seen: set[ClientMessageId] = set()
        self._attempts: dict[tuple[DeviceId, ClientMessageId], object] = {}
        self._requests: dict[tuple[DeviceId, int], ClientMessageId] = {}
        self._committed_at: dict[tuple[DeviceId, ClientMessageId], int] = {}
        self._page_read_at: dict[tuple[DeviceId, tuple[int, int]], int] = {}
        self._socket_synced: dict[SimSocket, int] = {}
        self._outcomes: dict[tuple[DeviceId, ClientMessageId], str] = {}
        self.decided: set[tuple[DeviceId, ClientMessageId]] = set()
        self._echoes: set[MessageId] = set()
        self._events = 0
        self._vanished = 0
        self.clients: list[SimClient] = []
        for number in range(self.random.randint(2, 4)):
            _identity, device = self.server.register(bytes([number]) * 32)
            self.clients.append(SimClient(self, f"client-{number}", device))

    # -- the run

    def run(self) -> dict[str, object]:
        """Play the storm, then the calm; the verdict, with `ok` and what was seen."""
        random, schedule = self.random, self.schedule
        for client in self.clients:
            client.start()
        self._every(5_000, self.server.tick)
        backup = None
        for _act in range(random.randint(15, 80)):
            schedule.run_until(schedule.now + random.choice([1, 10, 100, 1_000, 10_000]))
            random.choice(self.clients).act()
            event = random.random()
            if event < 0.01:
                self._sleep(random.choice([600_000, 3 * 3_600_000, 30 * 3_600_000]))
            elif event < 0.02:
                self.server.restart(say_goodbye=random.random() < 0.5)
            elif event < 0.03:
                self.server.clean_up()
            elif event < 0.05:
                self.weather = storm(random)
            elif event < 0.07 and self.restores:
                if backup is None:
                    backup = self.server.backup()
                else:
                    self._restore(backup)
                    backup = None
        self._calm()
        verdict = self.recorder.verdict(now_ms=schedule.server_ms)
        lost_by_restores = int(verdict["lost"]) if self._vanished >= int(verdict["lost"]) else 0
        broken = {name: verdict[name] for name in _FAULT_NAMES if verdict[name]}
        if lost_by_restores:
            broken.pop("lost", None)
        faults = [*self.faults, *(f"{name}: {count}" for name, count in broken.items())]
        return {
            "ok": not faults,
            "seed": self.seed,
            "faults": faults[:20],
            "examples": verdict["examples"],
            "sends": self.sends,
            "handed": verdict["handed_entries"],
        }

    def _sleep(self, milliseconds: int) -> None:
        """A long time without any process: past the dedup windows, past the age of pending sends."""
        for client in self.clients:
            self.random.choice([client.crash, client.close])(milliseconds)
        self.schedule.run_until(self.schedule.now + milliseconds)

    def _calm(self) -> None:
        self.weather = CALM
        self.crashes = self.store_faults = self.refusals = 0.0
        schedule = self.schedule
        for client in self.clients:
            client.start_again()
            client.step(Prefer(None), RetryDeferred())
        end = schedule.now + REST_PATIENCE_MS
        pause = 100
        while schedule.now < end:
            schedule.run_until(schedule.now + pause)
            for client in self.clients:
                client.start_again()
                client.read_all()
            if all(client.at_rest for client in self.clients) and self._mailboxes_empty():
                return
            pause = min(3_600_000, pause * 2)
        self.fault("it did not come to rest")

    def _mailboxes_empty(self) -> bool:
        now = self.server.now_ms
        return not any(
            mailbox.pending(now) or mailbox.pending(now, echo=True) for mailbox in self.server.state.mailboxes.values()
        )

    def _every(self, milliseconds: int, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self.schedule.after(milliseconds, again)

        self.schedule.after(milliseconds, again)

    def _restore(self, backup: object) -> None:
        before = self._entries()
        self.server.restore(backup)  # type: ignore[arg-type]
        self._vanished += len(before - self._entries())
        kept = {(device, record[2]) for device in self._devices() for record in self.server.state.records}
        self._committed_at = {key: at for key, at in self._committed_at.items() if (key[0], bytes(key[1])) in kept}

    def _entries(self) -> set[tuple[DeviceId, MessageId]]:
        return {(device, mid) for device, mailbox in self.server.state.mailboxes.items() for mid in mailbox.entries}

    def _devices(self) -> list[DeviceId]:
        return [client.device for client in self.clients]

    # -- what the parts ask and tell

    @property
    def seconds(self) -> float:
        return self.schedule.now / 1000

    def latency(self) -> int:
        return self.random.randint(0, self.weather.latency_max_ms)

    def new_id(self) -> bytes:
        return self.random.getrandbits(127).to_bytes(16, "big") or bytes(15) + b"\x01"

    def new_bytes(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def fault(self, what: str) -> None:
        if len(self.faults) < 100:
            self.faults.append(f"{what} (at {self.schedule.now} ms)")

    def note_id(self, cmid: ClientMessageId) -> None:
        if cmid in self._ids_seen:
            self.fault("a client message id was issued twice")
        self._ids_seen.add(cmid)

    def is_echo(self, mid: MessageId) -> bool:
        return mid in self._echoes

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

    # -- the history

    def send_offered(self, client: SimClient, send: Send) -> None:
        self._echoes.add(echo_mid(SECRET, client.device, send.cmid))
        offered = [OfferedEnvelope(one.to, one.mid, one.body) for one in send.envelopes]
        order: object = client.device
        if self._order_is_not_kept:
            self._events += 1
            order = self._events
        self._attempts[client.device, send.cmid] = self.recorder.offered(client.device, order, offered)

    @property
    def _order_is_not_kept(self) -> bool:
        """A refused and repeated send may be overtaken by those that were in flight with it."""
        return self.refusals > 0 or self.server.policy.pending_entries_max < 10_000 or self.restores

    def send_accepted(self, client: SimClient, cmid: ClientMessageId | None, results: tuple[object, ...]) -> None:
        attempt = self._attempts.get((client.device, cmid)) if cmid is not None else None
        if attempt is not None:
            self.recorder.accepted(attempt, results)  # type: ignore[arg-type]

    def send_refused(self, client: SimClient, cmid: ClientMessageId, code: ErrorCode, outcome: Outcome | None) -> None:
        attempt = self._attempts.get((client.device, cmid))
        if attempt is not None and code is not ErrorCode.IDEMPOTENCY_KEY_REUSED:
            self.recorder.refused(attempt, not_committed=outcome is Outcome.NOT_COMMITTED)  # type: ignore[arg-type]
        if code is ErrorCode.IDEMPOTENCY_KEY_REUSED:
            self.fault("a client message id was used for two sends")

    def note_request(self, client: SimClient, request: int, cmid: ClientMessageId) -> None:
        self._requests[client.device, request] = cmid

    def request_cmid(self, client: SimClient, request: int) -> ClientMessageId | None:
        return self._requests.get((client.device, request))

    def synced(self, socket: SimSocket) -> None:
        """The server read a watermark for this socket: the client can know everything committed before."""
        self._socket_synced[socket] = self.schedule.now

    def page_read(self, client: SimClient, begins: tuple[int, int]) -> None:
        """The same for the first page of an HTTP session; that of an abandoned one may be read late."""
        self._page_read_at[client.device, begins] = self.schedule.now

    def synced_at(self, client: SimClient, socket: SimSocket | None = None) -> int | None:
        """When the watermark of this socket, or of the present HTTP session, was read at the server."""
        if socket is not None:
            return self._socket_synced.get(socket)
        return self._page_read_at.get((client.device, client.first_page))

    def send_arrives(self, client: SimClient, send: Send, synced_at: int | None) -> None:
        """Seed 002: what was committed before a session's watermark must be matched in it, not sent again.

        `synced_at` belongs to the session of the moment in which the client let it go; it may arrive much later.
        """
        key = (client.device, send.cmid)
        committed_at = self._committed_at.get(key)
        if key in self.decided:
            return  # past a day the app may choose to risk it: its echo may have expired
        if committed_at is not None and synced_at is not None and committed_at < synced_at:
            self.fault("a send went out again that the mailbox had shown to be committed")
        self.schedule.after(0, lambda: self._note_commit(key))

    def _note_commit(self, key: tuple[DeviceId, ClientMessageId]) -> None:
        if key not in self._committed_at and any(
            actor == key[0] and bytes(cmid) == bytes(key[1]) for actor, _, cmid in self.server.state.records
        ):
            self._committed_at[key] = self.schedule.now

    def outcome(self, client: SimClient, cmid: ClientMessageId, what: str) -> None:
        key = (client.device, cmid)
        if key in self._outcomes:
            self.fault(f"two outcomes of one send: {self._outcomes[key]}, then {what}")
        self._outcomes[key] = what


_FAULT_NAMES: Final = (
    "lost",
    "duplicated",
    "out_of_order",
    "unexpected",
    "corrupted",
    "refused_but_stored",
    "wrong_answer",
)


def _reserve(store: MemoryStore, device: DeviceId, server_now_ms: int | None) -> object:
    return store.reserve_ordinals(device, server_now_ms=server_now_ms, ordinals=SETTINGS.lease_ordinals)


def run(seed: int) -> dict[str, object]:
    """One run by its seed."""
    return World(seed).run()
