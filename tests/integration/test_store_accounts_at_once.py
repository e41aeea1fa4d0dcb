"""Everything that changes accounts, at once and at random: no deadlock, no limit broken, nothing half done."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

from protocol.errors import ErrorCode, MailboxError
from protocol.ids import DeviceId, IdentityId
from store.policy_rules import Policy
from store.prekeys import Prekey
from store.push_routes import PushAddress
from tests.support.accounts import Accounts, Keys, accounts
from tests.support.seeds import random_seeds

IDENTITIES = 3
DEVICES_MAX = 3
ACTORS = 8
STEPS = 40

# What a random request may be refused for. UNAVAILABLE would be a deadlock, INTERNAL a broken constraint.
EXPECTED = {
    ErrorCode.DEVICE_LIMIT,
    ErrorCode.DEVICE_REVOKED,
    ErrorCode.NOT_FOUND,
    ErrorCode.BAD_REQUEST,
    ErrorCode.IDEMPOTENCY_KEY_REUSED,
}


class World:
    """The devices that there are, with their keys."""

    def __init__(self, store: Accounts, chance: random.Random) -> None:
        self.store = store
        self.chance = chance
        self.devices: dict[DeviceId, tuple[Keys, IdentityId]] = {}
        self.refusals: Counter[ErrorCode] = Counter()

    async def open(self) -> None:
        for _ in range(IDENTITIES):
            keys, registered = await self.store.register()
            self.devices[registered.device_id] = keys, registered.identity_id

    async def step(self) -> None:
        device = self.chance.choice(list(self.devices))
        act = self.chance.choice([self.add, self.revoke, self.upload, self.claim, self.put_route, self.drop_route])
        try:
            await act(device)
        except MailboxError as error:
            self.refusals[error.code] += 1

    def key(self) -> bytes | None:
        """Now and then one that others use as well."""
        return self.chance.choice([None, b"shared-1", b"shared-2", os.urandom(8).hex().encode()])

    async def add(self, device: DeviceId) -> None:
        keys, identity = self.devices[device]
        new = Keys()
        own = [each for each, (_, of) in self.devices.items() if of == identity]
        replaces = self.chance.choice([None, self.chance.choice(own)])
        challenge = await self.store.challenge(device, "device.add")
        addition = keys.addition(self.store.instance, identity, device, challenge, new, replaces)
        added, _ = await self.store.identities.add_device(addition, key=self.key(), request_id="r")
        if added not in self.devices:
            self.devices[added] = new, identity

    async def revoke(self, device: DeviceId) -> None:
        keys, _ = self.devices[device]
        target = self.chance.choice(list(self.devices))
        challenge = await self.store.challenge(device, "device.revoke")
        revocation = keys.revocation(self.store.instance, device, challenge, target)
        await self.store.identities.revoke_device(revocation, key=self.key(), request_id="r")

    async def upload(self, device: DeviceId) -> None:
        first = self.chance.randrange(1_000_000)
        prekeys = [Prekey(first + n, os.urandom(32)) for n in range(5)]
        await self.store.prekeys.upload(device, prekeys, None, key=self.key())

    async def claim(self, device: DeviceId) -> None:
        _, identity = self.devices[self.chance.choice(list(self.devices))]
        await self.store.prekeys.claim(device, identity, key=self.key(), rate_refused_ms=None, one_time_allowed=True)

    async def put_route(self, device: DeviceId) -> None:
        address = PushAddress("fcm", {"token": str(self.chance.randrange(3))})
        await self.store.push_routes.put(device, address, key=self.key())

    async def drop_route(self, device: DeviceId) -> None:
        await self.store.push_routes.delete(device, key=self.key())


async def test_random_changes_at_once_leave_every_rule_standing(database: str) -> None:
    policy = Policy(registration="open", max_active_devices_per_identity=DEVICES_MAX)
    (seed,) = random_seeds(1)
    async with accounts(database, policy, pool_max=ACTORS) as store:
        world = World(store, random.Random(seed))
        await world.open()

        async def act() -> None:
            for _ in range(STEPS):
                await world.step()

        await asyncio.gather(*[act() for _ in range(ACTORS)])

        fetchval = store.postgres.fetchval
        most = await fetchval(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM devices WHERE status = 'active' GROUP BY identity_id) AS c"
        )
        assert most is None or most <= DEVICES_MAX
        apart = await fetchval(
            "SELECT count(*) FROM devices d FULL JOIN mailboxes b USING (device_id) FULL JOIN mailbox_owners o"
            " USING (device_id) WHERE d IS NULL OR b IS NULL OR o IS NULL OR (d.status = 'active') <> (b.state = 1)"
            " OR d.identity_id <> b.identity_id"
        )
        assert apart == 0
        left_behind = await fetchval(
            "SELECT count(*) FROM devices d WHERE d.status = 'revoked' AND (EXISTS (SELECT FROM prekeys p WHERE"
            " p.device_id = d.device_id) OR EXISTS (SELECT FROM push_routes r WHERE r.device_id = d.device_id))"
        )
        assert left_behind == 0
        assert await fetchval("SELECT count(*) FROM prekeys WHERE state = 'reserved'") == 0
        assert await fetchval("SELECT count(*) FROM idempotency_records WHERE response_body_safe IS NULL") == 0
        assert set(world.refusals) <= EXPECTED
