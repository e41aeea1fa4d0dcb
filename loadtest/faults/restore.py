"""The restore drill of docs/operations.md: base backup, WAL archive, back to a moment before the end, after-restore."""

from __future__ import annotations

import json
import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from loadtest.faults.database import all_say
from loadtest.faults.fake_clock import FakeClock
from loadtest.faults.fault import Scene, fault
from loadtest.faults.postgres_cluster import Backups
from loadtest.faults.postgres_server import PostgresServer
from loadtest.faults.probe import Probe
from loadtest.faults.world import Service, WorldFailed, WorldPlan
from mailbox_client.http_answers import LastResortKey, OneTimeKey
from protocol.errors import ErrorCode, MailboxError
from protocol.ids import MessageId

NEEDS: Final = (Service.POSTGRES, Service.GATEWAY)
MOMENT: Final = "before_the_end"
HOUR_S: Final = 3_600
_CLOSED: Final = (ErrorCode.UNAVAILABLE,)


class PostgresWithArchive(PostgresServer):
    """Its WAL is archived from the start, beside it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.backups = Backups(directory.with_name("backups"))
        self.settings.update(self.backups.settings)
        self.clock = FakeClock(directory.with_name("clock"))


class _Drill:
    """Devices that lived through the restore, and what they did before and after the moment it goes back to."""

    def __init__(self, scene: Scene, postgres: PostgresWithArchive) -> None:
        self.scene = scene
        self.postgres = postgres
        self.alice, self.bob, self.carol, self.dave = (Probe(scene) for _ in range(4))
        self.came_back: MessageId
        self.lost: MessageId
        self.old_cursor = ""
        self.revocations = scene.world.directory / f"revocations-{secrets.token_hex(4)}.jsonl"

    async def until_the_moment(self) -> None:
        """The base backup, and what the restored database will know."""
        keys = [OneTimeKey(number, secrets.token_bytes(32)) for number in (1, 2)]
        await self.alice.http.upload_prekeys(keys, LastResortKey(9, secrets.token_bytes(32), secrets.token_bytes(64)))
        await self.postgres.backups.take(self.postgres)
        self.came_back = await self.bob.send_to(self.alice)
        await self.scene.any_moment()
        await self.postgres.backups.mark(self.postgres, MOMENT)

    async def after_the_moment(self) -> None:
        """What it will not know: an ACK, a key that was handed out, mail, a revocation, a registration."""
        self.lost = await self.bob.send_to(self.alice)
        self.old_cursor = await self.alice.cursor()
        await self.alice.ack([self.came_back, self.lost])
        claim = await self.bob.http.claim_prekeys(self.alice.account.identity_id)
        self.scene.check(claim.devices[0].one_time is not None, "no one-time key was handed out at first")
        await self.carol.account.revoke_device(self.carol.http, self.carol.device)
        self.revocations.write_text(await self.scene.world.mailboxd("admin", "devices", "revocations"))
        await self.dave.register()

    async def check_closed(self) -> None:
        """Gateways are there, and nothing is written, however often somebody tries."""
        await all_say(self.scene, "restored")
        for _ in range(3):
            try:
                await self.bob.send_to(self.alice)
                self.scene.check(False, "a SEND was accepted before after-restore")
            except MailboxError as error:
                self.scene.check(error.code in _CLOSED, f"a SEND before after-restore was told {error.code}")

    async def declare(self) -> None:
        said = await self.scene.world.mailboxd(
            "admin", "after-restore", "--revocations", str(self.revocations), "--json"
        )
        report = json.loads(said[said.index("{") :])
        self.scene.facts["after_restore"] = report
        self.scene.check(report["revocations_applied"] == 1, "the revocation was not applied again")
        self.scene.check(report["prekeys_suspect"] == 2, "not every one-time key that was available is suspect")

    async def check_promises(self) -> None:
        """What docs/operations.md says that clients see."""
        check, alice, bob = self.scene.check, self.alice, self.bob
        check(await alice.refusal_of(self.old_cursor) is ErrorCode.CURSOR_INVALID, "an old cursor was not refused")
        waiting = await alice.pull()
        check(waiting == [self.came_back], f"not exactly the entry whose ACK was lost came back: {len(waiting)}")
        await alice.ack(waiting)
        new = await bob.send_to(alice)
        check(await alice.pull() == [new], "new mail is not there, or more than it")
        check(await alice.refusal_of(await alice.cursor()) is None, "cursors are refused more than once")
        await alice.ack([new])
        claim = await bob.http.claim_prekeys(alice.account.identity_id)
        check(claim.devices[0].one_time is None, "a one-time key of before was handed out again")
        await alice.http.upload_prekeys([OneTimeKey(3, secrets.token_bytes(32))])
        claim = await bob.http.claim_prekeys(alice.account.identity_id)
        check(claim.devices[0].one_time is not None, "a key that was uploaded since is not handed out")
        check(await self.carol.refusal() is ErrorCode.DEVICE_REVOKED, "a revoked device was let in again")
        check(await self.dave.refusal() is not None, "a device that the database does not know was let in")


async def _run(scene: Scene, *, clock_s: int = 0) -> None:
    postgres = scene.world.owned_postgres
    if not isinstance(postgres, PostgresWithArchive):
        raise TypeError("this fault needs its own plan's PostgreSQL")
    drill = _Drill(scene, postgres)
    async with AsyncExitStack() as probes:
        for probe in (drill.alice, drill.bob, drill.carol):
            await probes.enter_async_context(probe)
        probes.push_async_callback(drill.dave.http.close)
        await drill.until_the_moment()
        await scene.any_moment()
        await drill.after_the_moment()
        # Mail of after the moment is lost with the restore, unless it has arrived: let it, so that the judge can count.
        await scene.traffic.settle()
        await postgres.backups.archive_all(postgres)
        await postgres.stop()
        if clock_s:
            postgres.environment = postgres.clock.environment
            postgres.clock.step(clock_s)
        await postgres.backups.restore(postgres, to=MOMENT, marker=secrets.token_hex(8))
        await drill.check_closed()
        await drill.declare()
        scene.mended()
        await scene.world.ready()
        await drill.check_promises()
    try:
        await scene.world.mailboxd("admin", "after-restore")
        scene.check(False, "a second after-restore did not say that it was done already")
    except WorldFailed:
        pass
    for client in scene.traffic.clients:
        client.start()


@fault(
    "restore-drill",
    needs=NEEDS,
    plan=WorldPlan(make_postgres=PostgresWithArchive, alone=True),
    recover_s_max=60.0,
)
async def restore_drill(scene: Scene) -> None:
    """PostgreSQL is restored to an earlier moment; nothing is written until after-restore has run, then all goes on."""
    await _run(scene)


@fault(
    "restore-drill-clock-behind",
    needs=NEEDS,
    plan=WorldPlan(make_postgres=PostgresWithArchive, alone=True),
    recover_s_max=60.0,
)
async def restore_drill_clock_behind(scene: Scene) -> None:
    """The same onto a host whose clock is an hour behind: new positions lie below the cursors that clients hold."""
    if not FakeClock.is_there():
        scene.facts["not_done"] = "libfaketime is not installed"
        return
    await _run(scene, clock_s=-HOUR_S)
