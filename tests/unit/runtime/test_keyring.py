"""The keyring: a file that only its owner reads, whole after a crash, and rotations that lock nobody out."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runtime.key_rings import KeyringError, Purpose
from runtime.keyring import KEYRING_FILE, Keyring, create, update

NOW_MS = 1_700_000_000_000
SYMMETRIC = [purpose for purpose in Purpose if purpose is not Purpose.TOKEN]


def rewritten(secrets_dir: Path, change: Any) -> None:
    """Apply `change` to the JSON document of the file."""
    path = secrets_dir / KEYRING_FILE
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


# The file


def test_a_created_keyring_reads_back_as_it_was(tmp_path: Path) -> None:
    created = create(tmp_path / "secrets", NOW_MS)
    assert Keyring.load(tmp_path / "secrets") == created
    assert len(created.fingerprint.key) == len(created.log_key) == 32
    secrets = {key.secret for ring in created.rings.values() for key in ring.keys}
    assert len(secrets) == len(Purpose), "every purpose has a key of its own"


def test_only_the_owner_can_read_what_was_written(tmp_path: Path) -> None:
    create(tmp_path / "secrets", NOW_MS)
    update(tmp_path / "secrets", lambda keyring: keyring.rotate(Purpose.LOG, NOW_MS))
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "secrets" / KEYRING_FILE).stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "secrets") == [KEYRING_FILE], "no half-written file stays behind"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o601])
def test_a_file_that_others_may_open_is_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    create(tmp_path, NOW_MS)
    (tmp_path / KEYRING_FILE).chmod(mode)
    with pytest.raises(KeyringError, match="chmod 600"):
        Keyring.load(tmp_path)


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(KeyringError, match="mailboxd init"):
        Keyring.load(tmp_path)


def test_an_existing_keyring_is_never_replaced(tmp_path: Path) -> None:
    first = create(tmp_path, NOW_MS)
    with pytest.raises(KeyringError, match="never replaced"):
        create(tmp_path, NOW_MS)
    assert Keyring.load(tmp_path) == first


def test_a_refused_change_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    created = create(tmp_path, NOW_MS)
    with pytest.raises(KeyringError):
        update(tmp_path, lambda keyring: keyring.retire(Purpose.CURSOR, "1"))
    assert Keyring.load(tmp_path) == created
    assert os.listdir(tmp_path) == [KEYRING_FILE]


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    create(tmp_path, NOW_MS)
    purposes = list(Purpose)
    with ThreadPoolExecutor(len(purposes)) as threads:
        list(threads.map(lambda p: update(tmp_path, lambda keyring: keyring.stage(p, NOW_MS)), purposes))
    assert all(ring.staged is not None for ring in Keyring.load(tmp_path).rings.values())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.update(format=2), "format"),
        (lambda d: d.pop("cursor"), "cursor"),
        (lambda d: d.update({"push-token": []}), "push-token"),
        (lambda d: d["cursor"].update(current="9"), "current key"),
        (lambda d: d["cursor"].update(keys=[]), "1 to 8 keys"),
        (lambda d: d["cursor"].update(keys=d["cursor"]["keys"] * 2), "different ids"),
        (lambda d: d["fingerprint"]["keys"][0].update(id="0"), "bad id"),
        (lambda d: d["fingerprint"]["keys"][0].update(id="256"), "bad id"),
        (lambda d: d["fingerprint"]["keys"][0].update(id="01"), "bad id"),
        (lambda d: d["fingerprint"]["keys"][0].update(id=1), "bad id"),
        (lambda d: d["token"]["keys"][0].update(id=""), "bad id"),
        (lambda d: d["log"]["keys"][0].update(secret="AAAA"), "bad length"),
        (lambda d: d["log"]["keys"][0].update(secret="not base64!"), "malformed"),
        (lambda d: d["log"]["keys"][0].update(secret=7), "malformed"),
        (lambda d: d["log"]["keys"][0].pop("secret"), "malformed"),
        (lambda d: d["log"]["keys"].append("x"), "malformed"),
        (lambda d: d["log"]["keys"][0].update(created_at_ms="today"), "bad time"),
        (lambda d: d["log"]["keys"][0].update(superseded_at_ms=True), "bad time"),
    ],
)
def test_a_damaged_file_is_refused_with_the_part_and_without_its_keys(tmp_path: Path, change: Any, told: str) -> None:
    created = create(tmp_path, NOW_MS)
    secrets = json.loads((tmp_path / KEYRING_FILE).read_text())
    rewritten(tmp_path, change)
    with pytest.raises(KeyringError, match=told) as caught:
        Keyring.load(tmp_path)
    for purpose in created.rings:
        assert secrets[purpose.value]["keys"][0]["secret"] not in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"[]", b'"' + b"a" * 300_000 + b'"'])
def test_bytes_that_are_no_keyring_are_refused(tmp_path: Path, text: bytes) -> None:
    create(tmp_path, NOW_MS)
    (tmp_path / KEYRING_FILE).write_bytes(text)
    with pytest.raises(KeyringError, match="is not a keyring"):
        Keyring.load(tmp_path)


def test_no_key_shows_when_a_keyring_is_printed() -> None:
    keyring = Keyring.generate(NOW_MS)
    printed = f"{keyring!r} {keyring.rings!r} {keyring.fingerprint!r} {keyring.fingerprint}"
    for ring in keyring.rings.values():
        assert repr(ring.current_key.secret)[2:-1] not in printed


# Rotation


def test_a_staged_key_opens_but_does_not_seal() -> None:
    keyring = Keyring.generate(NOW_MS).stage(Purpose.CURSOR, NOW_MS)
    current, keys = keyring.cursor_ring
    assert (current, sorted(keys)) == (1, [1, 2])
    assert keyring.rings[Purpose.CURSOR].role(keyring.rings[Purpose.CURSOR].keys[1]) == "staged"


def test_rotating_uses_the_staged_key_and_keeps_the_old_one_open() -> None:
    staged = Keyring.generate(NOW_MS).stage(Purpose.CURSOR, NOW_MS)
    rotated = staged.rotate(Purpose.CURSOR, NOW_MS + 5)
    assert rotated.cursor_ring == (2, staged.cursor_ring[1])
    old = rotated.rings[Purpose.CURSOR].keys[0]
    assert (rotated.rings[Purpose.CURSOR].role(old), old.superseded_at_ms) == ("old", NOW_MS + 5)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_rotating_without_staging_makes_a_new_key_at_once(purpose: Purpose) -> None:
    before = Keyring.generate(NOW_MS).rings[purpose]
    after = before.rotate(NOW_MS)
    assert after.current != before.current
    assert [key.key_id for key in after.keys] == [before.current, after.current]


def test_records_are_looked_up_under_both_fingerprint_secrets_while_one_takes_over() -> None:
    keyring = Keyring.generate(NOW_MS)
    assert keyring.fingerprint_old is None
    staged = keyring.stage(Purpose.FINGERPRINT, NOW_MS)
    assert (staged.fingerprint, staged.fingerprint_old is not None) == (keyring.fingerprint, True)
    rotated = staged.rotate(Purpose.FINGERPRINT, NOW_MS)
    assert (rotated.fingerprint, rotated.fingerprint_old) == (staged.fingerprint_old, keyring.fingerprint)
    retired = rotated.retire(Purpose.FINGERPRINT, "1")
    assert (retired.fingerprint, retired.fingerprint_old) == (rotated.fingerprint, None)


def test_a_third_fingerprint_secret_waits_until_the_first_is_retired() -> None:
    rotated = Keyring.generate(NOW_MS).rotate(Purpose.FINGERPRINT, NOW_MS)
    with pytest.raises(KeyringError, match="retire key 1 first"):
        rotated.stage(Purpose.FINGERPRINT, NOW_MS)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_ring_never_grows_past_its_bound(purpose: Purpose) -> None:
    ring = Keyring.generate(NOW_MS).rings[purpose]
    for _ in range(purpose.keys_max - 1):
        ring = ring.rotate(NOW_MS)
    with pytest.raises(KeyringError, match="full"):
        ring.rotate(NOW_MS)


def test_tokens_of_the_old_key_verify_until_it_is_retired() -> None:
    keyring = Keyring.generate(NOW_MS)
    kid, signing = keyring.token_signing
    signature = signing.sign(b"claims")
    rotated = keyring.rotate(Purpose.TOKEN, NOW_MS)
    rotated.token_keys[kid].verify(signature, b"claims")
    assert rotated.token_signing[0] != kid
    assert kid not in rotated.retire(Purpose.TOKEN, kid).token_keys


def test_the_key_in_use_and_unknown_keys_cannot_be_retired() -> None:
    keyring = Keyring.generate(NOW_MS)
    with pytest.raises(KeyringError, match="in use"):
        keyring.retire(Purpose.PUSH_TOKEN, "1")
    with pytest.raises(KeyringError, match="there is no key 7; there are 1"):
        keyring.retire(Purpose.PUSH_TOKEN, "7")


def test_a_second_staging_is_refused_until_the_first_is_used_or_retired() -> None:
    ring = Keyring.generate(NOW_MS).rings[Purpose.CURSOR].stage(NOW_MS)
    with pytest.raises(KeyringError, match="staged already"):
        ring.stage(NOW_MS)
    assert ring.retire("2").stage(NOW_MS).staged is not None


@pytest.mark.parametrize("purpose", SYMMETRIC)
def test_key_ids_stay_in_one_byte_over_many_rotations(purpose: Purpose) -> None:
    ring = Keyring.generate(NOW_MS).rings[purpose]
    seen = []
    for _ in range(600):
        ring = ring.rotate(NOW_MS).retire(ring.current)
        seen.append(int(ring.current))
    assert seen[:254] == list(range(2, 256)), "ids run on past retired ones"
    assert set(seen) <= set(range(1, 256))
