"""`mailboxd admin devices …`: what an operator may do to a device without its owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mailboxd.options import TAKES_IDS, ConfigFile, DataDir, Json
from mailboxd.terminal import CommandError, print_result

if TYPE_CHECKING:
    from mailboxd.admin_session import AdminSession
    from protocol.ids import DeviceId
    from store.identities import IdentityStore

devices_app = typer.Typer(no_args_is_help=True, help="Devices of the instance.")


@devices_app.command("revoke", context_settings=TAKES_IDS)
def revoke_device(
    device_id: Annotated[str, typer.Argument(help="The device's id, 22 characters.")],
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Revoke a device for good: its session is closed, it gets no mail and no token any more.

    Without Redis the session is closed by the next sweep instead of at once.
    """
    from mailboxd.admin_session import run_admin
    from protocol.ids import DeviceId, id_from_text

    try:
        device = DeviceId(id_from_text(device_id))
    except ValueError as error:
        raise CommandError(f"{device_id} is no device id: {error}") from None
    was_active = run_admin(data_dir, config_file, lambda session: _revoke(session, device))
    line = "the device is revoked" if was_active else "the device was revoked before"
    print_result({"device_id": device_id, "was_active": was_active}, as_json=as_json, lines=[line])


@devices_app.command("revocations")
def list_revocations(
    since_ms: Annotated[
        int, typer.Option("--since-ms", min=0, help="Only from this instant on, in ms since 1970 (default: all).")
    ] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000)] = 1_000_000,
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
) -> None:
    """Print revoked devices, oldest first, one JSON object a line.

    Append them now and then to a file outside of the database: `after-restore --revocations FILE` applies them again.
    """
    from mailboxd.admin_session import run_admin
    from mailboxd.terminal import print_json
    from protocol.ids import to_text
    from store.after_restore import list_revocations

    for revocation in run_admin(
        data_dir, config_file, lambda session: list_revocations(session.postgres, since_ms, limit)
    ):
        print_json({"device_id": to_text(revocation.device_id), "revoked_at_ms": revocation.revoked_at_ms})


async def _revoke(session: AdminSession, device: DeviceId) -> bool:
    """In the database first, which is what counts; then the gateways are told, also when it was revoked before."""
    from protocol.errors import ErrorCode, MailboxError
    from protocol.ids import InstanceId, to_text
    from store.instance import read_instance_id
    from store.redis_client import connect
    from store.redis_names import instance_tag
    from store.wake import WakeBus, WakeNames, lanes_of

    identities = await identity_store(session)
    try:
        was_active = await identities.revoke_by_operator(device, request_id=session.request_id)
    except MailboxError as error:
        if error.code is ErrorCode.NOT_FOUND:
            raise CommandError(f"there is no device {to_text(device)}") from None
        raise
    redis = connect(session.config.redis_url)
    tag = instance_tag(InstanceId(await read_instance_id(session.postgres)))
    wake = WakeBus(redis, WakeNames(tag, session.keyring.fingerprint.key, lanes=lanes_of(redis)))
    wake.publish_revoked([device])
    await wake.close()
    await redis.aclose()
    return was_active


async def identity_store(session: AdminSession) -> IdentityStore:
    from protocol.fingerprint import InstanceSecret
    from protocol.ids import InstanceId
    from store.auth import ChallengeStore
    from store.idempotency import RequestRecords
    from store.identities import IdentityStore
    from store.instance import read_instance_id

    policy = await session.policy()
    return IdentityStore(
        session.postgres,
        InstanceId(await read_instance_id(session.postgres)),
        RequestRecords(InstanceSecret(*session.keyring.fingerprint)),
        ChallengeStore(session.postgres),
        session.audit,
        lambda: policy,
    )
