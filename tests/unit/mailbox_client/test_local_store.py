"""The contract of the local store: every promise of `LocalStore`, for both stores alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mailbox_client.local_store import LocalStore, MessageState, SendState, StoredAccount, StoredSend, StoreFault
from mailbox_client.receipts import Refusal
from protocol.ids import IdentityId, InstanceId
from tests.support.client_values import NOW_MS, cmid, device, entry, envelope, mid

OpenStore = Callable[[], LocalStore]


def a_send(number: int, *, state: SendState = SendState.PENDING, created_at: int | None = NOW_MS) -> StoredSend:
    return StoredSend(cmid(number), number, (envelope(number),), True, state, created_at)


def an_account() -> StoredAccount:
    return StoredAccount(
        "http://host", InstanceId(b"i" * 16), IdentityId(b"p" * 16), device(), b"s" * 32, b"public bundle"
    )


class Broken(Exception):
    pass


def test_what_a_transaction_wrote_is_found_by_the_next_process(open_store: OpenStore) -> None:
    store = open_store()
    with store.transaction():
        store.save_account(an_account())
        store.set_cursor("cursor")
        store.note_ms("walk", NOW_MS)
        store.add_send(a_send(1))
        store.hold(entry(1), NOW_MS)
        store.owe_ack([mid(2)])
    store = open_store()
    with store.transaction():
        assert store.account() == an_account()
        assert store.cursor() == "cursor"
        assert store.noted_ms("walk") == NOW_MS
        assert store.sends(SendState.PENDING) == [a_send(1)]
        assert [message.entry for message in store.held(10)] == [entry(1)]
        assert store.acks_owed() == [mid(2)]


def test_a_transaction_that_raises_leaves_nothing_of_all_its_writes(open_store: OpenStore) -> None:
    store = open_store()
    with store.transaction():
        store.save_account(an_account())
        store.set_cursor("before")
        store.add_send(a_send(1))
        store.hold(entry(1), NOW_MS)
        store.hold(entry(2), NOW_MS)
        store.set_state([mid(2)], MessageState.HANDED_OVER)
        store.owe_ack([mid(8)])
    with pytest.raises(Broken), store.transaction():
        store.save_account(an_account()._replace(url="http://other"))
        store.set_cursor("after")
        store.note_ms("walk", 1)
        store.add_send(a_send(2))
        store.save_send(a_send(1, state=SendState.CONFIRMED))
        store.hold(entry(3), NOW_MS)
        store.set_state([mid(1)], MessageState.CONFIRMED)
        store.count_crash(1)
        store.owe_ack([mid(9)])
        store.ack_paid([mid(8)])
        store.prune(NOW_MS * 2)
        store.reset()
        raise Broken
    store = open_store()
    with store.transaction():
        assert store.account() == an_account()
        assert store.cursor() == "before"
        assert store.noted_ms("walk") is None
        assert store.sends(*SendState) == [a_send(1)]
        assert [message.entry.mid for message in store.held(10)] == [mid(1)]
        assert store.held(1)[0].entry.body == b"sealed"
        assert store.in_state(MessageState.HANDED_OVER) == [mid(2)]
        assert store.message_state(mid(3)) is None
        assert store.acks_owed() == [mid(8)]


def test_an_empty_store_has_nothing(store: LocalStore) -> None:
    with store.transaction():
        assert store.account() is None
        assert store.cursor() is None
        assert store.noted_ms("walk") is None
        assert store.send(cmid()) is None
        assert store.last_send_order() == 0
        assert store.message_state(mid()) is None
        assert store.held(10) == []
        assert store.acks_owed() == []
    assert not store.was_reset


def test_sends_come_in_their_order_and_by_state(store: LocalStore) -> None:
    with store.transaction():
        for number in (3, 1, 2):
            store.add_send(a_send(number))
        store.save_send(a_send(2, state=SendState.UNKNOWN))
        assert [send.order for send in store.sends(SendState.PENDING)] == [1, 3]
        assert [send.order for send in store.sends(SendState.PENDING, SendState.UNKNOWN)] == [1, 2, 3]
        assert store.last_send_order() == 3


def test_a_finished_send_keeps_its_outcome_and_loses_its_bodies(store: LocalStore) -> None:
    refused = (Refusal(device(4), mid(4), "MAILBOX_FULL", 60_000),)
    with store.transaction():
        store.add_send(a_send(1))
        store.add_send(a_send(2))
        done = a_send(1)._replace(state=SendState.CONFIRMED, accepted_at=NOW_MS, refused=refused)
        store.save_send(done)
        store.save_send(a_send(2, state=SendState.UNKNOWN))
        assert store.send(cmid(1)) == done._replace(envelopes=(envelope(1, body=b""),))
        unknown = store.send(cmid(2))
    assert unknown is not None
    assert unknown.envelopes == (envelope(2),), "the app may decide to send it again"


def test_the_order_of_sends_goes_on_above_pruned_ones(open_store: OpenStore) -> None:
    store = open_store()
    with store.transaction():
        store.add_send(a_send(7))
        store.save_send(a_send(7, state=SendState.CONFIRMED))
        store.prune(NOW_MS + 1)
        assert store.sends(*SendState) == []
    store = open_store()
    with store.transaction():
        assert store.last_send_order() == 7


def test_messages_come_in_order_of_arrival_whatever_state_they_were_in(store: LocalStore) -> None:
    with store.transaction():
        for number in (5, 2, 9):
            store.hold(entry(number), NOW_MS)
        store.set_state([mid(5)], MessageState.DEFERRED)
        assert [message.entry.mid for message in store.held(10)] == [mid(2), mid(9)]
        store.set_state([mid(5)], MessageState.HELD)
        assert [message.entry.mid for message in store.held(10)] == [mid(5), mid(2), mid(9)]
        assert [message.entry.mid for message in store.held(2)] == [mid(5), mid(2)]


def test_a_message_comes_back_with_every_field(store: LocalStore) -> None:
    whole = entry(1, sent_as=cmid(3))._replace(pad=2, pv=7)
    empty = entry(2, body=b"")
    with store.transaction():
        store.hold(whole, NOW_MS)
        store.hold(empty, NOW_MS)
        assert [message.entry for message in store.held(10)] == [whole, empty]


def test_a_message_id_is_held_once(store: LocalStore) -> None:
    with pytest.raises(StoreFault), store.transaction():
        store.hold(entry(1), NOW_MS)
        store.hold(entry(1, body=b"other"), NOW_MS)
    with store.transaction():
        assert store.message_state(mid(1)) is None


def test_confirming_drops_the_body_and_keeps_the_id(store: LocalStore) -> None:
    with store.transaction():
        store.hold(entry(1), NOW_MS)
        store.set_state([mid(1), mid(404)], MessageState.CONFIRMED)
        assert store.message_state(mid(1)) is MessageState.CONFIRMED
        assert store.message_state(mid(404)) is None
        store.set_state([mid(1)], MessageState.HELD)
        assert store.held(1)[0].entry.body is None


def test_a_crash_is_counted_for_what_was_handed_over_and_the_third_defers(store: LocalStore) -> None:
    with store.transaction():
        store.hold(entry(1), NOW_MS)
        store.hold(entry(2), NOW_MS)
    for crashes in (1, 2):
        with store.transaction():
            store.set_state([mid(1)], MessageState.HANDED_OVER)
            assert store.count_crash(3) == []
            assert [message.crashes for message in store.held(10)] == [crashes, 0]
    with store.transaction():
        store.set_state([mid(1)], MessageState.HANDED_OVER)
        assert store.count_crash(3) == [mid(1)]
        assert store.in_state(MessageState.DEFERRED) == [mid(1)]
        assert [message.entry.mid for message in store.held(10)] == [mid(2)]


def test_a_confirmation_ends_the_count_of_crashes(store: LocalStore) -> None:
    with store.transaction():
        store.hold(entry(1), NOW_MS)
        store.set_state([mid(1)], MessageState.HANDED_OVER)
        store.count_crash(3)
        store.set_state([mid(1)], MessageState.CONFIRMED)
        store.set_state([mid(1)], MessageState.HELD)
        assert store.held(1)[0].crashes == 0


def test_an_owed_ack_is_owed_once_until_it_is_paid(store: LocalStore) -> None:
    with store.transaction():
        store.owe_ack([mid(1), mid(2)])
        store.owe_ack([mid(2), mid(3)])
        assert sorted(store.acks_owed()) == [mid(1), mid(2), mid(3)]
        store.ack_paid([mid(1), mid(3), mid(404)])
        assert store.acks_owed() == [mid(2)]


def test_pruning_forgets_only_what_is_old_and_done(store: LocalStore) -> None:
    with store.transaction():
        for number, seen_at in ((1, NOW_MS), (2, NOW_MS), (3, NOW_MS + 1)):
            store.hold(entry(number), seen_at)
        store.set_state([mid(1), mid(3)], MessageState.CONFIRMED)
        store.add_send(a_send(1))
        store.add_send(a_send(2, created_at=NOW_MS))
        store.add_send(a_send(3, created_at=NOW_MS + 1))
        store.save_send(a_send(2, state=SendState.CONFIRMED))
        store.save_send(a_send(3, state=SendState.REFUSED, created_at=NOW_MS + 1))
        store.prune(NOW_MS + 1)
        assert [store.message_state(mid(number)) for number in (1, 2, 3)] == [
            None,
            MessageState.HELD,
            MessageState.CONFIRMED,
        ]
        assert [send.order for send in store.sends(*SendState)] == [1, 3]


def test_reset_takes_messages_and_cursors_and_leaves_account_sends_and_high_water(open_store: OpenStore) -> None:
    store = open_store()
    first = store.reserve_ordinals(device(), ordinals=10)
    with store.transaction():
        store.save_account(an_account())
        store.set_cursor("cursor")
        store.add_send(a_send(1))
        store.hold(entry(1), NOW_MS)
        store.owe_ack([mid(2)])
        store.reset()
    store = open_store()
    with store.transaction():
        assert store.cursor() is None
        assert store.message_state(mid(1)) is None
        assert store.acks_owed() == []
        assert store.account() == an_account()
        assert store.sends(SendState.PENDING) == [a_send(1)]
    assert store.reserve_ordinals(device(), ordinals=10).first == first.last + 1


def test_each_device_has_its_own_ordinals(store: LocalStore) -> None:
    assert store.reserve_ordinals(device(1), ordinals=10) == (0, 9)
    assert store.reserve_ordinals(device(2), ordinals=10) == (0, 9)
    assert store.reserve_ordinals(device(1), ordinals=10) == (10, 19)


def test_a_write_outside_a_transaction_is_a_fault(open_store: OpenStore) -> None:
    store = open_store()
    if not store.blocks:
        with pytest.raises(StoreFault):
            store.set_cursor("cursor")
    with store.transaction():
        with pytest.raises(StoreFault), store.transaction():
            store.set_cursor("nested")
        assert store.cursor() is None
