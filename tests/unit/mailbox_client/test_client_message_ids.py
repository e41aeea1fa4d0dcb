"""Seed 003: the regressions that the collision diagnosis asks for, on both stores where a store takes part."""

from __future__ import annotations

import multiprocessing
import secrets
import sqlite3
from collections.abc import Callable
from multiprocessing.pool import Pool
from pathlib import Path

import pytest

from mailbox_client.client_message_ids import NO_ID, ClientMessageIds
from mailbox_client.errors import IdNotUsable
from mailbox_client.local_store import LocalStore, MessageState, SendState, StoredSend
from mailbox_client.local_store.schema import SCHEMA_VERSION, create_version_1
from mailbox_client.local_store.sqlite import SqliteStore
from protocol import client_message_id
from protocol.client_message_id import (
    ORDINAL_MAX,
    SKIP_BITS,
    CorruptHighWater,
    OrdinalLease,
    OrdinalsExhausted,
    derive,
    next_lease,
)
from protocol.ids import ZERO_ID, ClientMessageId, DeviceId
from tests.support.client_values import NOW_MS, cmid, device, entry, envelope, mid

OpenStore = Callable[[], LocalStore]


def issuer(store: LocalStore, *, ordinals: int = 16, server_now_ms: int | None = None) -> ClientMessageIds:
    """What a process does when it starts."""
    lease = store.reserve_ordinals(device(), ordinals=ordinals, server_now_ms=server_now_ms)
    return ClientMessageIds(device(), lease)


# -- never the same id twice


def test_seed003_restart_in_the_same_millisecond_never_repeats_an_id(open_store: OpenStore) -> None:
    seen: set[ClientMessageId] = set()
    for _start in range(20):  # no clock takes part: every start is in the same millisecond
        ids = issuer(open_store())
        issued = [ids.issue() for _ in range(5)]
        assert seen.isdisjoint(issued)
        seen.update(issued)
    assert len(seen) == 100


def test_seed003_a_clock_set_back_changes_nothing(open_store: OpenStore) -> None:
    before = issuer(open_store(), server_now_ms=NOW_MS).issue()
    after = [issuer(open_store(), server_now_ms=NOW_MS - back).issue() for back in (1, 3_600_000, NOW_MS)]
    assert len({before, *after}) == 4


def _reserve_many(path: str) -> list[tuple[int, int]]:
    store = SqliteStore(path)
    try:
        return [tuple(store.reserve_ordinals(device(), ordinals=7)) for _ in range(25)]
    finally:
        store.close()


def test_seed003_two_processes_on_one_file_never_share_an_ordinal(tmp_path: Path) -> None:
    path = str(tmp_path / "device.sqlite")
    with Pool(3, context=multiprocessing.get_context("spawn")) as processes:
        leases = [lease for taken in processes.map(_reserve_many, [path] * 3, chunksize=1) for lease in taken]
    assert len(leases) == 75
    ordinals = [ordinal for first, last in leases for ordinal in range(first, last + 1)]
    assert len(set(ordinals)) == len(ordinals) == 75 * 7


def test_seed003_a_lease_begins_strictly_above_the_high_water(open_store: OpenStore) -> None:
    first = open_store().reserve_ordinals(device(), ordinals=5)
    second = open_store().reserve_ordinals(device(), ordinals=5)
    assert second.first == first.last + 1


def test_seed003_overflow_of_the_ordinals_is_a_clear_error_and_reserves_nothing(open_store: OpenStore) -> None:
    store = open_store()
    last = store.reserve_ordinals(device(), ordinals=ORDINAL_MAX - 9)
    with pytest.raises(OrdinalsExhausted):
        store.reserve_ordinals(device(), ordinals=11)
    assert open_store().reserve_ordinals(device(), ordinals=10) == (last.last + 1, ORDINAL_MAX)
    with pytest.raises(OrdinalsExhausted):
        open_store().reserve_ordinals(device(), ordinals=1)


def test_seed003_devices_that_share_their_low_64_bits_do_not_share_ids() -> None:
    low = b"same low"
    one, other = DeviceId(b"high one" + low), DeviceId(b"high two" + low)
    lease = OrdinalLease(0, 99)
    ids_of_one = {ClientMessageIds(one, lease).issue() for _ in range(1)}
    first, second = ClientMessageIds(one, lease), ClientMessageIds(other, lease)
    assert {first.issue() for _ in range(50)}.isdisjoint({second.issue() for _ in range(50)})
    assert ids_of_one == {derive(one, 0)}


# -- the invalid sentinel


def test_seed003_an_ordinal_that_hashes_to_zero_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = client_message_id.derive
    monkeypatch.setattr(
        "mailbox_client.client_message_ids.derive",
        lambda device_id, ordinal: None if ordinal in (0, 2) else real(device_id, ordinal),
    )
    ids = ClientMessageIds(device(), OrdinalLease(0, 3))
    assert [ids.issue(), ids.issue(), ids.issue()] == [derive(device(), 1), derive(device(), 3), NO_ID]


def test_seed003_zero_is_never_accepted_for_a_send() -> None:
    ids = ClientMessageIds(device(), OrdinalLease(0, 3))
    with pytest.raises(IdNotUsable):
        ids.consume(ClientMessageId(ZERO_ID))
    assert NO_ID == ZERO_ID


# -- issued and not consumed


def test_seed003_an_id_that_was_not_issued_is_refused() -> None:
    ids = ClientMessageIds(device(), OrdinalLease(0, 3))
    with pytest.raises(IdNotUsable):
        ids.consume(cmid(1))
    not_yet = derive(device(), 2)
    assert not_yet is not None
    with pytest.raises(IdNotUsable):
        ids.consume(not_yet)


def test_seed003_an_id_is_used_once() -> None:
    ids = ClientMessageIds(device(), OrdinalLease(0, 3))
    issued = ids.issue()
    ids.consume(issued)
    with pytest.raises(IdNotUsable):
        ids.consume(issued)


def test_seed003_issuing_pauses_at_256_outstanding_and_goes_on_after_one_is_consumed() -> None:
    ids = ClientMessageIds(device(), OrdinalLease(0, 2**40 - 1))
    issued = [ids.issue() for _ in range(256)]
    assert NO_ID not in issued
    assert ids.issue() == NO_ID
    assert ids.issue() == NO_ID
    ids.consume(issued[100])
    assert ids.issue() == derive(device(), 256), "nothing was skipped while it paused"
    assert ids.issue() == NO_ID
    assert ids.outstanding == 256


def test_seed003_ids_issued_before_the_lease_ended_stay_valid() -> None:
    ids = ClientMessageIds(device(), OrdinalLease(0, 1))
    first, last = ids.issue(), ids.issue()
    assert ids.issue() == NO_ID
    ids.consume(last)
    ids.consume(first)
    assert ids.issue() == NO_ID


# -- leases that renew


def test_a_spare_lease_is_wanted_at_half_and_taken_over_without_a_stall() -> None:
    ids = ClientMessageIds(device(), OrdinalLease(0, 9))
    wanted_at = []
    issued = []
    for number in range(10):
        issued.append(ids.issue())
        if ids.wants_lease and not wanted_at:
            wanted_at.append(number)
            ids.add_lease(OrdinalLease(100, 109))
    issued += [ids.issue() for _ in range(10)]
    assert wanted_at == [4]
    assert NO_ID not in issued
    assert issued == [derive(device(), ordinal) for ordinal in (*range(10), *range(100, 110))]


def test_a_crash_between_reserving_and_using_the_spare_skips_ordinals_and_repeats_none(open_store: OpenStore) -> None:
    store = open_store()
    ids = issuer(store, ordinals=4)
    before = [ids.issue() for _ in range(3)]
    store.reserve_ordinals(device(), ordinals=4)  # the process ends before it takes the spare
    ids = issuer(open_store(), ordinals=4)
    after = [ids.issue() for _ in range(4)]
    assert NO_ID not in before + after
    assert len(set(before + after)) == 7


def test_a_lease_below_the_present_one_is_refused() -> None:
    ids = ClientMessageIds(device(), OrdinalLease(100, 199))
    with pytest.raises(ValueError, match="above"):
        ids.add_lease(OrdinalLease(0, 9))
    with pytest.raises(ValueError, match="above"):
        ids.start_again_at(OrdinalLease(199, 210))


def test_a_restored_backup_does_not_bring_old_ids_back_once_the_server_time_is_known(tmp_path: Path) -> None:
    path, backup = tmp_path / "device.sqlite", tmp_path / "backup.sqlite"
    store = SqliteStore(path)
    ids = issuer(store, server_now_ms=NOW_MS)
    copied = sqlite3.connect(backup)
    store.connection.backup(copied)
    copied.close()
    ids = issuer(store, server_now_ms=NOW_MS + 1_000)
    used_after_the_backup = {ids.issue() for _ in range(16)}
    store.close()

    store = SqliteStore(backup)  # the phone is restored, an hour later
    ids = issuer(store)
    lease = store.reserve_ordinals(device(), ordinals=16, server_now_ms=NOW_MS + 3_600_000)
    ids.start_again_at(lease)
    assert lease.first == (NOW_MS + 3_600_000) << 64
    assert used_after_the_backup.isdisjoint({ids.issue() for _ in range(16)})
    store.close()


def test_two_processes_that_start_from_one_backup_without_the_server_share_no_id(tmp_path: Path) -> None:
    path, backup = tmp_path / "device.sqlite", tmp_path / "backup.sqlite"
    store = SqliteStore(path)
    issuer(store)
    copied = sqlite3.connect(backup)
    store.connection.backup(copied)
    copied.close()
    store.close()

    issued = []
    for file in (path, backup):
        store = SqliteStore(file)
        lease = store.reserve_ordinals(device(), ordinals=16, skip=secrets.randbits(SKIP_BITS))
        ids = ClientMessageIds(device(), lease)
        issued.append({ids.issue() for _ in range(16)})
        store.close()
    assert issued[0].isdisjoint(issued[1])


def test_a_skip_lies_above_the_high_water_and_below_a_millisecond_of_server_time() -> None:
    assert next_lease(99, ordinals=10, skip=7) == OrdinalLease(107, 116)
    most = next_lease(None, server_now_ms=NOW_MS, ordinals=1, skip=2**SKIP_BITS - 1)
    assert NOW_MS << 64 < most.first < (NOW_MS + 1) << 64


def test_ids_issued_before_the_server_time_was_known_stay_valid() -> None:
    ids = ClientMessageIds(device(), OrdinalLease(0, 9))
    early = ids.issue()
    ids.start_again_at(OrdinalLease(NOW_MS << 64, (NOW_MS << 64) + 9))
    assert ids.issue() == derive(device(), NOW_MS << 64)
    ids.consume(early)


# -- the file


@pytest.mark.parametrize("damage", [b"", b"\x01", bytes(15), bytes(17), "text", 5, None])
def test_seed003_a_corrupt_high_water_gives_out_nothing(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "device.sqlite"
    store = SqliteStore(path)
    store.reserve_ordinals(device(), ordinals=5)
    if damage is None:
        store.connection.execute("PRAGMA writable_schema = ON")
        store.connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'high_water BLOB NOT NULL', 'high_water')"
        )
        store.close()
        store = SqliteStore(path)
    store.connection.execute("UPDATE local_client_message_id SET high_water = ?", (damage,))
    for _try in range(2):
        with pytest.raises(CorruptHighWater):
            store.reserve_ordinals(device(), ordinals=5)
    assert store.connection.execute("SELECT high_water FROM local_client_message_id").fetchone() == (damage,)
    store.close()


def _version_1_file(path: Path) -> None:
    """A file as the SDK of schema version 1 left it, with something in every table."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    create_version_1(connection)
    connection.execute("COMMIT")
    assert not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'local_client_message_id'").fetchall()
    connection.close()
    store = SqliteStore.__new__(SqliteStore)
    store._db = sqlite3.connect(path, isolation_level=None)
    with store.transaction():
        store.set_cursor("cursor of version 1")
        store.add_send(StoredSend(cmid(1), 1, (envelope(1),), True, SendState.PENDING, NOW_MS))
        store.hold(entry(1), NOW_MS)
        store.hold(entry(2), NOW_MS)
        store.set_state([mid(2)], MessageState.CONFIRMED)
        store.owe_ack([mid(2)])
    store.close()


def test_seed003_migration_from_version_1_keeps_cursor_pending_and_messages(tmp_path: Path) -> None:
    path = tmp_path / "device.sqlite"
    _version_1_file(path)
    store = SqliteStore(path)
    assert not store.was_reset
    with store.transaction():
        assert store.cursor() == "cursor of version 1"
        assert [send.cmid for send in store.sends(SendState.PENDING)] == [cmid(1)]
        assert [message.entry for message in store.held(10)] == [entry(1)]
        assert store.message_state(mid(2)) is MessageState.CONFIRMED
        assert store.acks_owed() == [mid(2)]
    assert store.reserve_ordinals(device(), ordinals=5) == (0, 4)
    assert store.connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    store.close()


def test_seed003_a_newer_schema_is_reset_safely_and_keeps_the_high_water(tmp_path: Path) -> None:
    path = tmp_path / "device.sqlite"
    store = SqliteStore(path)
    lease = store.reserve_ordinals(device(), ordinals=5)
    with store.transaction():
        store.set_cursor("cursor")
        store.hold(entry(1), NOW_MS)
        store.add_send(StoredSend(cmid(1), 1, (envelope(1),), True, SendState.PENDING, NOW_MS))
    store.connection.execute("ALTER TABLE local_message ADD COLUMN reactions BLOB")
    store.connection.execute("ALTER TABLE local_pending ADD COLUMN priority INTEGER NOT NULL DEFAULT 0")
    store.connection.execute("CREATE TABLE local_reaction (message_id BLOB)")
    store.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    store.close()

    store = SqliteStore(path)
    assert store.was_reset
    with store.transaction():
        assert store.cursor() is None
        assert store.message_state(mid(1)) is None
        store.hold(entry(1), NOW_MS)
        assert [send.cmid for send in store.sends(SendState.PENDING)] == [cmid(1)]
        store.add_send(StoredSend(cmid(2), 2, (envelope(2),), True, SendState.PENDING, NOW_MS))
    assert store.reserve_ordinals(device(), ordinals=5).first == lease.last + 1
    store.close()
    store = SqliteStore(path)
    assert not store.was_reset, "a reset is done once"
    store.close()


def test_a_newer_schema_whose_pending_table_has_another_shape_loses_it_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "device.sqlite"
    store = SqliteStore(path)
    lease = store.reserve_ordinals(device(), ordinals=5)
    store.connection.execute("DROP TABLE local_pending")
    store.connection.execute("CREATE TABLE local_pending (something_else BLOB)")
    store.connection.execute("PRAGMA user_version = 77")
    store.close()
    store = SqliteStore(path)
    with store.transaction():
        store.add_send(StoredSend(cmid(2), 1, (envelope(2),), True, SendState.PENDING, NOW_MS))
        assert len(store.sends(SendState.PENDING)) == 1
    assert store.reserve_ordinals(device(), ordinals=5).first == lease.last + 1
    store.close()


def test_the_file_of_a_device_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "device.sqlite"
    SqliteStore(path).close()
    assert path.stat().st_mode & 0o077 == 0
