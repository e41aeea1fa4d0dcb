"""One device: its store outlives its processes, and what the driver and the app do to the engine is done here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

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
from mailbox_client.incoming import ACKS_IN_FLIGHT_MAX
from mailbox_client.local_store import MessageState, SendState, StoredMessage, StoreFault
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.settings import ClientSettings
from protocol.client_message_id import SERVER_TIME_SHIFT
from protocol.errors import MailboxError
from protocol.frames import Ack, Error, Send, SendAck, SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId
from tests.simulation.http_door import (
    Answer,
    acked_in,
    asked_to_ack,
    asked_to_send,
    page_in,
    results_in,
    token_in,
)
from tests.simulation.sockets import SimSocket

if TYPE_CHECKING:
    from tests.simulation.world import World

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
NO_ANSWER_MS: Final = 30_000
REQUESTS_MAX: Final = 16
_NOT_STATE: Final = ("_reserving", "_undo", "fails")
Read = TypeVar("Read")


class ShakyStore(MemoryStore):
    """A memory store whose commits fail now and then, as a full disk makes them, and that can go back to a backup."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[], bool] = lambda: False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction():
            yield
            if self.fails():
                raise StoreFault("the disk is full")

    def backup(self) -> dict[str, Any]:
        return copy.deepcopy({name: value for name, value in vars(self).items() if name not in _NOT_STATE})

    def restore(self, backup: dict[str, Any]) -> None:
        vars(self).update(copy.deepcopy(backup))


class DeviceBackup(NamedTuple):
    """A phone's backup: the store, and with it the app's memory of what it is done with."""

    store: dict[str, Any]
    confirmed: frozenset[MessageId]


class SimDevice:
    """One device. `world.make_engine` and `world.reserve` are what a planted bug replaces."""

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
        self.first_page = (0, 0)  # process and request: of the page that begins the present HTTP session
        self.steps = 0
        self._token = ""
        self._process = 0
        self._socket: SimSocket | None = None
        self._requests: set[int] = set()
        self._tick_at: int | None = None
        self._numbers: Iterator[int] = count(1)

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
                self.world.reserve(self.store, self.device, None, self.world.random),
                outstanding_max=SETTINGS.outstanding_max,
            )
            self.engine = self._make(after_crash=True)
        except StoreFault:
            self.engine = None
            self.world.schedule.after(1_000, self.start_again)
            return
        self.step(Start())
        if self.world.random.random() < (0.6 if self.world.phone_restores else 0.2):
            self.send()  # before the server was heard

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
            self._socket.leave(at_once=True)
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

    # -- backups of the phone

    def backup(self) -> DeviceBackup:
        return DeviceBackup(self.store.backup(), frozenset(self.confirmed))

    def restore(self, backup: DeviceBackup) -> None:
        """The phone goes back to a backup: its store, and what its app remembers."""
        self.crash()
        self.store.restore(backup.store)
        since = self.confirmed - backup.confirmed
        self.confirmed = set(backup.confirmed)
        with MemoryStore.transaction(self.store):
            pending = [send.cmid for send in self.store.sends(SendState.PENDING, SendState.UNKNOWN)]
        self.world.history.store_restored(self, since, pending)

    # -- the driver, as mailbox_client.driver does it

    def step(self, *inputs: Input) -> bool:
        """One step of the engine; False if nothing of it was kept."""
        engine = self.engine
        if engine is None:
            return False
        world = self.world
        self.steps += 1
        if world.dies_at(self, "before the step is kept"):
            self.crash()
            return False
        try:
            outputs = engine.step(world.schedule.now, [*inputs, Tick()])
        except StoreFault:
            self._start_engine_again()
            return False
        self._note_inputs(inputs)
        for number, output in enumerate(outputs):
            if world.dies_at(self, f"before output {number}"):
                self.crash()  # after the commit; not all that it wanted goes out
            if self.engine is not engine:
                return True
            self._carry_out(output)
        if self.engine is engine:
            self._check_bounds(engine)
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
        ids, world = self.ids, self.world
        assert ids is not None
        known = next((output.server_now_ms for output in outputs if isinstance(output, ServerTimeKnown)), None)
        if known is not None and ids.current_first < known << SERVER_TIME_SHIFT:
            ids.start_again_at(world.reserve(self.store, self.device, known, world.random))
        elif ids.wants_lease and self.engine is not None:
            now = self.engine.server_now(world.schedule.now)
            ids.add_lease(world.reserve(self.store, self.device, now, world.random))

    def _check_bounds(self, engine: Engine) -> None:
        """Memory is bounded by what the settings and the server say, whatever happens."""
        assert self.ids is not None
        outgoing, incoming = engine._outgoing, engine._incoming
        policy = self.world.server.policy
        held = {
            "ids in the app's hands": (self.ids.outstanding, SETTINGS.outstanding_max),
            "pending sends": (engine.pending, SETTINGS.pending_max + self.world.unknown_resent),
            "sends in flight": (outgoing.in_flight, policy.sends_in_flight),
            "ACKs in flight": (incoming.acks_in_flight, ACKS_IN_FLIGHT_MAX),
            "requests": (len(self._requests), REQUESTS_MAX),
            "the window": (len(incoming._window.sizes), SETTINGS.window_entries),
        }
        for what, (used, bound) in held.items():
            if used > bound:
                self.world.fault(f"{what}: {used}, and the bound is {bound}")

    def _note_inputs(self, inputs: tuple[Input, ...]) -> None:
        """The step is durable: tell the history what the app and the wire now know."""
        history = self.world.history
        for one in inputs:
            match one:
                case FrameReceived(_, SendAck(cmid, _, results)):
                    history.accepted(self, cmid, results)
                case SendAnswered(request, _, results):
                    history.accepted(self, history.request_cmid(self, request), results)
                case FrameReceived(_, Error(code=code, cmid=bytes() as cmid, outcome=outcome)):
                    history.refused(self, ClientMessageId(cmid), code, outcome)
                case RequestFailed(request, MailboxError() as error):
                    failed = history.request_cmid(self, request)
                    if failed is not None:
                        history.refused(self, failed, error.code, error.outcome)
                case Submit():
                    history.submitted(self, one)
                case Confirm(mids):
                    history.confirmed(self, mids)
                case DeferMessages(mids):
                    history.deferred(self, mids)
                case _:
                    pass

    def _carry_out(self, output: Output) -> None:
        history = self.world.history
        match output:
            case OpenSocket(number):
                self._socket = SimSocket(self.world, self, number)
            case PutFrame(_, frame):
                if isinstance(frame, Send):
                    history.offered(self, frame)
                elif isinstance(frame, Ack):
                    history.acking(self, frame.mids)
                if self._socket is not None:
                    self._socket.put(frame)
            case CloseSocket(_, at_once):
                if self._socket is not None:
                    self._socket.leave(at_once=at_once)
                    self._socket = None
            case FetchToken() | GetPage() | PostSend() | PostAck():
                self._start_request(output)
            case Abandon(request):
                self._requests.discard(request)
            case HandOver(messages):
                in_hand = {message.entry.mid for message in self.in_hand}
                for message in messages:
                    if message.entry.mid in in_hand:
                        self.world.fault("handed over again while the app has it in hand")
                    history.handed_over(self, message.entry)
                self.in_hand += messages
            case Notify(event):
                self._event(event)
            case _:
                pass

    def _event(self, event: Event) -> None:
        world = self.world
        match event:
            case SendConfirmed(receipt):
                world.history.told_confirmed(self, receipt)
            case SendsRefused(cmid, _, True):
                world.history.outcome(self, cmid, "refused")
            case SendOutcomeUnknown(cmid):
                decision = world.random.choice([Resend, Forget])
                world.history.decided(self, cmid)
                world.unknown_resent += 1
                world.schedule.after(5, lambda: self.step(decision(cmid)))
            case Stopped(reason):
                self.stopped = reason
            case _:
                pass

    # -- HTTP

    def _start_request(self, request: FetchToken | GetPage | PostSend | PostAck) -> None:
        door, history = self.world.door, self.world.history
        number, token = request.request, self._token
        match request:
            case FetchToken():
                self._exchange(number, lambda: door.token(self.device), self._token_came, token=True)
            case GetPage(_, cursor, wait_s, until):
                assert self.engine is not None
                reading = self.engine._reading
                begins = (self._process, number)
                first = reading.is_page(number) and reading._watermark is None
                if first:
                    self.first_page = begins

                def read_page() -> Answer:
                    if first:
                        history.page_read(self, begins)
                    return door.page(token, cursor, SETTINGS.page_limit, until)

                self._exchange(
                    number, read_page, lambda answer: PullAnswered(number, page_in(answer)), wait_ms=wait_s * 1000
                )
            case PostSend(_, send):
                history.offered(self, send)
                history.posted(self, number, send.cmid)
                synced_at, body = history.synced_at(self), asked_to_send(send)

                def post(*, again: bool = False) -> Answer:
                    if again:
                        history.doubled(self, send)
                    else:
                        history.send_arrives(self, send, synced_at)
                    return door.send(token, body)

                self._exchange(number, post, lambda answer: SendAnswered(number, *results_in(answer)))
                if self.world.may_double():
                    self.world.later_once_more(lambda: post(again=True))
            case PostAck(_, mids):
                history.acking(self, mids)
                body = asked_to_ack(mids)

                def acked(answer: Answer) -> Input:
                    acked_in(answer)
                    return AckAnswered(number)

                self._exchange(number, lambda: door.acks(token, body), acked)

    def _token_came(self, answer: Answer) -> Input:
        token = token_in(answer)
        self._token = token.token
        (number,) = self._asked_for_token
        return TokenGiven(number, token.token, token.reauth_before - token.server_now_ms, token.server_now_ms)

    def _exchange(
        self,
        request: int,
        serve: Callable[[], Answer],
        read: Callable[[Answer], Input],
        *,
        wait_ms: int = 0,
        token: bool = False,
    ) -> None:
        """One request over a network that may break at any of its bytes: half of either way is none."""
        world, weather, process = self.world, self.world.weather, self._process
        self._requests.add(request)
        if token:
            self._asked_for_token = (request,)
        failed = TokenFailed if token else RequestFailed

        def give(one: Callable[[], Input]) -> None:
            if process == self._process and request in self._requests:
                self._requests.discard(request)
                self.step(one())

        def no_answer() -> None:
            give(lambda: failed(request, None))

        def answered(answer: Answer) -> None:
            def result() -> Input:
                try:
                    return read(answer)
                except MailboxError as error:
                    return failed(request, error)

            give(result)

        if world.breaks(weather.request_lost):
            world.schedule.after(world.random.choice([10, NO_ANSWER_MS]), no_answer)
            return
        lost = world.breaks(weather.answer_lost)

        def serve_now(*, waited: bool = False) -> None:
            answer = serve()
            if wait_ms and not waited and _is_empty_page(read, answer):
                world.schedule.after(min(wait_ms, 5_000), lambda: world.at_database(lambda: serve_now(waited=True)))
            elif lost:
                world.schedule.after(world.random.choice([10, NO_ANSWER_MS]), no_answer)
            else:
                world.schedule.after(world.latency(), lambda: answered(answer))

        world.schedule.after(world.latency(), lambda: world.at_database(serve_now))
        # A server that stands still: the client's own patience ends.
        world.schedule.after(2 * NO_ANSWER_MS + wait_ms, no_answer)

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

    def settle_first(self, how: type[Confirm] | type[DeferMessages] = Confirm) -> None:
        if self.in_hand:
            self.settle(self.in_hand[:1], how)

    def send(self, recipients: int | None = None) -> None:
        world, random = self.world, self.world.random
        if self.engine is None or self.ids is None or self.engine.pending >= SETTINGS.pending_max:
            return
        cmid = self.ids.issue()
        if cmid == NO_ID:
            return
        world.history.id_issued(cmid)
        self.ids.consume(cmid)
        envelopes = []
        for peer in random.sample(world.devices, recipients or random.randint(1, min(3, len(world.devices)))):
            body = random.randbytes(random.choice([0, 10, 700]))
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
    def settled(self) -> bool:
        """The mailbox was read to the watermark, and no send is without an outcome. The app need not have looked."""
        if self.stopped is not None and self.engine is not None:
            self.stopped = None
            self.step(Prefer(None), Start())
        return self.engine is not None and self.engine.caught_up and not self.engine.pending

    @property
    def at_rest(self) -> bool:
        if self.engine is None or self.engine.pending or self.in_hand:
            return False
        with MemoryStore.transaction(self.store):
            return not (self.store.in_state(MessageState.HELD) or self.store.acks_owed())


def _is_empty_page(read: Callable[[Answer], Input], answer: Answer) -> bool:
    try:
        page = read(answer)
    except MailboxError:
        return False
    return isinstance(page, PullAnswered) and not page.page.entries
