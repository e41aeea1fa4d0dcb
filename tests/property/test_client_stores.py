"""The SQLite store and the memory store are one and the same to whoever cannot look inside: random histories agree."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mailbox_client.local_store import LocalStore, MessageState, SendState, StoredSend
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.local_store.sqlite import SqliteStore
from protocol.client_message_id import OrdinalsExhausted
from tests.support.client_values import NOW_MS, cmid, device, entry, envelope, mid

numbers = st.integers(1, 6)
instants = st.integers(NOW_MS, NOW_MS + 5)


class Undone(Exception):
    pass


class TwoStores(RuleBasedStateMachine):
    """Every call goes to both, in one transaction each, which is undone now and then."""

    @initialize()
    def open(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "device.sqlite"
        self.sqlite = SqliteStore(self.path)
        self.memory = MemoryStore()
        self.order = 0

    def teardown(self) -> None:
        if hasattr(self, "sqlite"):
            self.sqlite.close()
            self.directory.cleanup()

    def both(self, call: Callable[[LocalStore], Any], *, undone: bool = False) -> None:
        answers = []
        for store in (self.sqlite, self.memory):
            try:
                with store.transaction():
                    answers.append(call(store))
                    if undone:
                        raise Undone
            except Undone:
                pass
        assert answers[0] == answers[1]

    @rule()
    def open_again(self) -> None:
        self.sqlite.close()
        self.sqlite = SqliteStore(self.path)

    @rule(number=numbers, seen_at=instants, undone=st.booleans())
    def hold(self, number: int, seen_at: int, undone: bool) -> None:
        def call(store: LocalStore) -> None:
            if store.message_state(mid(number)) is None:
                store.hold(entry(number), seen_at)

        self.both(call, undone=undone)

    @rule(some=st.lists(numbers), state=st.sampled_from(list(MessageState)), undone=st.booleans())
    def set_state(self, some: list[int], state: MessageState, undone: bool) -> None:
        self.both(lambda store: store.set_state([mid(one) for one in some], state), undone=undone)

    @rule(crashes_max=st.integers(1, 3), undone=st.booleans())
    def count_crash(self, crashes_max: int, undone: bool) -> None:
        self.both(lambda store: store.count_crash(crashes_max), undone=undone)

    @rule(some=st.lists(numbers), undone=st.booleans())
    def owe_acks(self, some: list[int], undone: bool) -> None:
        self.both(lambda store: store.owe_ack([mid(one) for one in some]), undone=undone)

    @rule(some=st.lists(numbers), undone=st.booleans())
    def pay_acks(self, some: list[int], undone: bool) -> None:
        self.both(lambda store: store.ack_paid([mid(one) for one in some]), undone=undone)

    @rule(undone=st.booleans(), created_at=st.none() | instants)
    def add_send(self, undone: bool, created_at: int | None) -> None:
        number = self.order + 1

        def call(store: LocalStore) -> None:
            store.add_send(StoredSend(cmid(number), number, (envelope(),), True, SendState.PENDING, created_at))

        self.both(call, undone=undone)
        if not undone:
            self.order = number

    @rule(number=numbers, state=st.sampled_from(list(SendState)), undone=st.booleans())
    def save_send(self, number: int, state: SendState, undone: bool) -> None:
        def call(store: LocalStore) -> None:
            stored = store.send(cmid(number))
            if stored is not None:
                store.save_send(stored._replace(state=state, accepted_at=NOW_MS))

        self.both(call, undone=undone)

    @rule(before=instants, undone=st.booleans())
    def prune(self, before: int, undone: bool) -> None:
        self.both(lambda store: store.prune(before), undone=undone)

    @rule(cursor=st.none() | st.text(min_size=1, max_size=3), undone=st.booleans())
    def set_cursor(self, cursor: str | None, undone: bool) -> None:
        self.both(lambda store: store.set_cursor(cursor), undone=undone)

    @rule(undone=st.booleans())
    def reset(self, undone: bool) -> None:
        self.both(lambda store: store.reset(), undone=undone)

    @rule(number=numbers, ordinals=st.integers(1, 2**127), now=st.none() | st.integers(0, 2**64))
    def reserve(self, number: int, ordinals: int, now: int | None) -> None:
        answers = []
        for store in (self.sqlite, self.memory):
            try:
                answers.append(store.reserve_ordinals(device(number), ordinals=ordinals, server_now_ms=now))
            except OrdinalsExhausted as error:
                answers.append(str(error))  # type: ignore[arg-type]
        assert answers[0] == answers[1]

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "sqlite"):
            return
        self.both(
            lambda store: (
                store.cursor(),
                store.sends(*SendState),
                store.last_send_order(),
                store.held(100),
                [store.in_state(state) for state in MessageState],
                sorted(store.acks_owed()),
            )
        )


TwoStores.TestCase.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_both_stores_keep_one_contract = TwoStores.TestCase
