"""Identities and devices in the database: one transaction each, limits under concurrency, safe repeats."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from protocol.errors import ErrorCode, MailboxError
from protocol.ids import DeviceId, IdentityId
from store.identities import DeviceRevocation
from store.identity_status import set_identity_status
from store.policy_rules import Policy
from store.prekeys import LastResortPrekey, Prekey
from store.push_routes import PushAddress
from tests.support.accounts import Accounts, Keys, accounts


@pytest_asyncio.fixture
async def store(database: str) -> AsyncIterator[Accounts]:
    async with accounts(database, pool_max=8) as made:
        yield made


async def refused(call: object) -> ErrorCode:
    with pytest.raises(MailboxError) as caught:
        await call  # type: ignore[misc]
    return caught.value.code


async def count(store: Accounts, table: str) -> int:
    return int(await store.postgres.fetchval(f"SELECT count(*) FROM {table}"))


async def test_a_registration_makes_identity_device_and_both_rows_of_its_mailbox(store: Accounts) -> None:
    keys, registered = await store.register()
    row = await store.postgres.fetchrow(
        "SELECT b.state, b.identity_id, o.device_id, d.device_public_key, d.status FROM mailboxes b"
        " JOIN mailbox_owners o USING (device_id) JOIN devices d USING (device_id) WHERE b.device_id = $1",
        registered.device_id,
    )
    assert row is not None
    assert tuple(row) == (1, registered.identity_id, registered.device_id, keys.public, "active")


async def test_the_same_device_key_again_gives_the_same_ids_and_makes_nothing(store: Accounts) -> None:
    keys, first = await store.register()
    again = await store.identities.register(keys.registration(store.instance), key=b"another-key")
    assert again == first
    assert await count(store, "identities") == await count(store, "mailboxes") == 1


async def test_a_known_device_key_registers_again_when_registration_is_closed(store: Accounts) -> None:
    keys, first = await store.register()
    store.policy = Policy(registration="closed")
    assert await store.identities.register(keys.registration(store.instance)) == first
    assert await refused(store.register()) is ErrorCode.REGISTRATION_CLOSED


async def test_a_known_device_key_with_another_bundle_is_a_bad_request(store: Accounts) -> None:
    keys, _ = await store.register()
    other = Keys(signing=keys.signing)
    assert await refused(store.identities.register(other.registration(store.instance))) is ErrorCode.BAD_REQUEST


async def test_registrations_of_one_key_at_once_make_one_identity(store: Accounts) -> None:
    keys = Keys()
    registration = keys.registration(store.instance)
    registered = await asyncio.gather(*[store.identities.register(registration) for _ in range(16)])
    assert len(set(registered)) == 1
    assert (
        await count(store, "identities") == await count(store, "devices") == await count(store, "mailbox_owners") == 1
    )


async def test_a_signature_by_another_key_or_for_another_instance_is_refused(store: Accounts) -> None:
    keys = Keys()
    good = keys.registration(store.instance)
    elsewhere = keys.registration(type(store.instance)(os.urandom(16)))
    for registration in (good._replace(signature=Keys().registration(store.instance).signature), elsewhere):
        assert await refused(store.identities.register(registration)) is ErrorCode.UNAUTHENTICATED
    assert await count(store, "identities") == 0


async def test_a_public_key_of_small_order_is_refused_whatever_the_signature(store: Accounts) -> None:
    weak = (
        Keys()
        .registration(store.instance)
        ._replace(device_public_key=b"\x01" + bytes(31), signature=b"\x01" + bytes(63))
    )
    assert await refused(store.identities.register(weak)) is ErrorCode.UNAUTHENTICATED


async def test_an_idempotency_key_with_another_request_is_reused(store: Accounts) -> None:
    keys = Keys()
    first = await store.identities.register(keys.registration(store.instance), key=b"k")
    assert await store.identities.register(keys.registration(store.instance), key=b"k") == first
    other = Keys(signing=keys.signing)
    refusal = refused(store.identities.register(other.registration(store.instance), key=b"k"))
    assert await refusal is ErrorCode.IDEMPOTENCY_KEY_REUSED


async def test_a_refused_registration_leaves_no_record_of_its_key(store: Accounts) -> None:
    store.policy = Policy(registration="closed")
    keys = Keys()
    registration = keys.registration(store.instance)
    assert await refused(store.identities.register(registration, key=b"k")) is ErrorCode.REGISTRATION_CLOSED
    store.policy = Policy(registration="open")
    assert (await store.identities.register(registration, key=b"k")).device_id


async def test_an_invite_admits_one_even_when_two_race(store: Accounts) -> None:
    store.policy = Policy(registration="invite")
    invite = (await store.invites.create(lifetime_s=60, request_id="r")).invite
    asked = [store.identities.register(Keys().registration(store.instance, invite)) for _ in range(2)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, MailboxError)]
    assert [error.code for error in errors] == [ErrorCode.INVITE_INVALID]
    assert [status.status for status in await store.invites.list()] == ["used"]


@pytest.mark.parametrize("invite", [None, "never-made"])
async def test_without_a_good_invite_nobody_registers(store: Accounts, invite: str | None) -> None:
    store.policy = Policy(registration="invite")
    asked = store.identities.register(Keys().registration(store.instance, invite))
    assert await refused(asked) is ErrorCode.INVITE_INVALID


async def test_a_revoked_invite_and_an_invite_that_ran_out_admit_nobody(store: Accounts) -> None:
    store.policy = Policy(registration="invite")
    revoked = await store.invites.create(lifetime_s=60, request_id="r")
    late = await store.invites.create(lifetime_s=60, request_id="r")
    assert await store.invites.revoke(revoked.tag, request_id="r")
    assert not await store.invites.revoke(revoked.tag, request_id="r")
    await store.postgres.execute(
        "UPDATE invites SET expires_at = mailboxd_now() - interval '1 ms' WHERE invite_tag = $1", late.tag
    )
    for invite in (revoked.invite, late.invite):
        asked = store.identities.register(Keys().registration(store.instance, invite))
        assert await refused(asked) is ErrorCode.INVITE_INVALID
    assert {status.status for status in await store.invites.list()} == {"revoked", "expired"}
    events = [event.event_type for event in await store.audit.list()]
    assert events == ["invite.revoked", "invite.created", "invite.created"]


async def add(
    store: Accounts,
    keys: Keys,
    acting: DeviceId,
    new: Keys,
    *,
    replaces: DeviceId | None = None,
    key: bytes | None = None,
) -> tuple[DeviceId, tuple[DeviceId, ...]]:
    identity = await store.postgres.fetchval("SELECT identity_id FROM devices WHERE device_id = $1", acting)
    challenge = await store.challenge(acting, "device.add")
    addition = keys.addition(store.instance, identity, acting, challenge, new, replaces)
    return await store.identities.add_device(addition, key=key, request_id="r")


async def revoke(
    store: Accounts, keys: Keys, acting: DeviceId, target: DeviceId, *, key: bytes | None = None
) -> object:
    challenge = await store.challenge(acting, "device.revoke")
    revocation = keys.revocation(store.instance, acting, challenge, target)
    return await store.identities.revoke_device(revocation, key=key, request_id="r")


async def test_a_phone_is_changed_at_a_limit_of_one_in_one_transaction(store: Accounts) -> None:
    old_keys, registered = await store.register()
    new_keys = Keys()
    new_device, revoked = await add(store, old_keys, registered.device_id, new_keys, replaces=registered.device_id)
    assert revoked == (registered.device_id,)
    devices = await store.identities.devices(new_device)
    assert {device.device_id: device.status for device in devices} == {
        registered.device_id: "revoked",
        new_device: "active",
    }
    assert await store.postgres.fetchval("SELECT state FROM mailboxes WHERE device_id = $1", registered.device_id) == 2
    events = [event.event_type for event in await store.audit.list()]
    assert events == ["device.revoked", "device.added"]


async def test_the_device_limit_holds_when_many_are_added_at_once(store: Accounts) -> None:
    store.policy = Policy(registration="open", max_active_devices_per_identity=3)
    keys, registered = await store.register()
    added = await asyncio.gather(
        *[add(store, keys, registered.device_id, Keys()) for _ in range(8)], return_exceptions=True
    )
    errors = [outcome.code for outcome in added if isinstance(outcome, MailboxError)]
    assert errors == [ErrorCode.DEVICE_LIMIT] * 6
    devices = await store.identities.devices(registered.device_id)
    assert sum(device.status == "active" for device in devices) == 3


async def test_a_device_key_that_is_there_already_is_not_added_twice(store: Accounts) -> None:
    store.policy = Policy(registration="open", max_active_devices_per_identity=3)
    keys, registered = await store.register()
    new = Keys()
    first, _ = await add(store, keys, registered.device_id, new)
    assert await add(store, keys, registered.device_id, new) == (first, ())
    stranger, _ = await store.register()
    assert await refused(add(store, keys, registered.device_id, stranger)) is ErrorCode.BAD_REQUEST
    await revoke(store, keys, registered.device_id, first)
    assert await refused(add(store, keys, registered.device_id, new)) is ErrorCode.DEVICE_REVOKED
    known = Keys(bundle=keys.bundle, signing=new.signing)
    assert await refused(store.identities.register(known.registration(store.instance))) is ErrorCode.DEVICE_REVOKED


async def test_a_wrong_proof_signature_or_challenge_adds_nothing_and_costs_no_challenge(store: Accounts) -> None:
    store.policy = Policy(registration="open", max_active_devices_per_identity=2)
    keys, registered = await store.register()
    challenge = await store.challenge(registered.device_id, "device.add")
    new = Keys()
    good = keys.addition(store.instance, registered.identity_id, registered.device_id, challenge, new)
    token_challenge = await store.challenge(registered.device_id, "token")
    foreign = keys.addition(store.instance, registered.identity_id, registered.device_id, token_challenge, new)
    for wrong in (good._replace(proof=good.signature), good._replace(signature=good.proof), foreign):
        refusal = refused(store.identities.add_device(wrong, key=None, request_id="r"))
        assert await refusal is ErrorCode.UNAUTHENTICATED
    device, _ = await store.identities.add_device(good, key=None, request_id="r")
    assert device
    again = refused(store.identities.add_device(good, key=None, request_id="r"))
    assert await again is ErrorCode.UNAUTHENTICATED  # its challenge is used up


async def test_of_two_additions_with_one_challenge_one_goes_through(store: Accounts) -> None:
    store.policy = Policy(registration="open", max_active_devices_per_identity=5)
    keys, registered = await store.register()
    challenge = await store.challenge(registered.device_id, "device.add")
    asked = [
        store.identities.add_device(
            keys.addition(store.instance, registered.identity_id, registered.device_id, challenge, Keys()),
            key=None,
            request_id="r",
        )
        for _ in range(2)
    ]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [outcome.code for outcome in outcomes if isinstance(outcome, MailboxError)] == [ErrorCode.UNAUTHENTICATED]


async def test_a_repeated_replacement_answers_even_the_device_that_it_revoked(store: Accounts) -> None:
    keys, registered = await store.register()
    new = Keys()
    first, _ = await add(store, keys, registered.device_id, new, replaces=registered.device_id, key=b"k")
    # A fresh challenge and signature: the repeat is the same request all the same.
    assert await add(store, keys, registered.device_id, new, replaces=registered.device_id, key=b"k") == (first, ())
    assert await refused(add(store, keys, registered.device_id, new, key=b"k")) is ErrorCode.IDEMPOTENCY_KEY_REUSED
    without_key = refused(add(store, keys, registered.device_id, Keys(), replaces=registered.device_id))
    assert await without_key is ErrorCode.DEVICE_REVOKED


async def test_a_device_revokes_itself_and_its_repeat_is_answered(store: Accounts) -> None:
    keys, registered = await store.register()
    device = registered.device_id
    assert await revoke(store, keys, device, device, key=b"k") == (device,)
    assert await revoke(store, keys, device, device, key=b"k") == ()
    assert await refused(revoke(store, keys, device, device)) is ErrorCode.DEVICE_REVOKED


async def test_revoking_drops_prekeys_and_route_with_the_mailbox(store: Accounts) -> None:
    store.policy = Policy(registration="open", max_active_devices_per_identity=2)
    keys, registered = await store.register()
    other, _ = await add(store, keys, registered.device_id, Keys())
    await store.prekeys.upload(other, [Prekey(1, b"k" * 32)], LastResortPrekey(2, b"l" * 32, b"s" * 64), key=None)
    await store.push_routes.put(other, PushAddress("fcm", {"token": "t"}), key=None)
    assert await revoke(store, keys, registered.device_id, other) == (other,)
    for table in ("prekeys", "last_resort_prekeys", "push_routes"):
        assert await count(store, table) == 0
    assert await store.postgres.fetchval("SELECT state FROM mailboxes WHERE device_id = $1", other) == 2
    assert await revoke(store, keys, registered.device_id, other) == ()  # a second time changes nothing


async def test_another_identitys_device_is_not_found(store: Accounts) -> None:
    keys, registered = await store.register()
    _, stranger = await store.register()
    for target in (stranger.device_id, DeviceId(os.urandom(16))):
        assert await refused(revoke(store, keys, registered.device_id, target)) is ErrorCode.NOT_FOUND
        replacing = add(store, keys, registered.device_id, Keys(), replaces=target)
        assert await refused(replacing) is ErrorCode.NOT_FOUND


async def test_a_signature_for_one_target_revokes_no_other(store: Accounts) -> None:
    store.policy = Policy(registration="open", max_active_devices_per_identity=2)
    keys, registered = await store.register()
    other, _ = await add(store, keys, registered.device_id, Keys())
    challenge = await store.challenge(registered.device_id, "device.revoke")
    signed_for_itself = keys.revocation(store.instance, registered.device_id, challenge, registered.device_id)
    moved = DeviceRevocation(registered.device_id, other, challenge, signed_for_itself.signature)
    refusal = refused(store.identities.revoke_device(moved, key=None, request_id="r"))
    assert await refusal is ErrorCode.UNAUTHENTICATED


async def test_the_operator_revokes_without_the_owner(store: Accounts) -> None:
    _, registered = await store.register()
    assert await store.identities.revoke_by_operator(registered.device_id, request_id="r")
    assert not await store.identities.revoke_by_operator(registered.device_id, request_id="r")
    unknown = store.identities.revoke_by_operator(DeviceId(os.urandom(16)), request_id="r")
    assert await refused(unknown) is ErrorCode.NOT_FOUND


async def test_a_disabled_identity_may_not_act(store: Accounts) -> None:
    keys, registered = await store.register()
    identity = registered.identity_id

    async def set_status(identity: IdentityId, *, active: bool) -> bool | None:
        return await set_identity_status(
            store.postgres, store.audit, identity, active=active, request_id="r", policy_version=1
        )

    assert await set_status(identity, active=False)
    assert await set_status(identity, active=False) is False
    assert await set_status(IdentityId(os.urandom(16)), active=False) is None
    assert await refused(store.identities.register(keys.registration(store.instance))) is ErrorCode.FORBIDDEN
    assert await refused(add(store, keys, registered.device_id, Keys())) is ErrorCode.FORBIDDEN
    assert await set_status(identity, active=True)
    await add(store, keys, registered.device_id, Keys(), replaces=registered.device_id)
    types = [event.event_type for event in await store.audit.list()]
    assert [type_ for type_ in types if type_.startswith("identity")] == ["identity.enabled", "identity.disabled"]
