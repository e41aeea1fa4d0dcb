"""`mailboxd admin identities …`: an operator's no to somebody, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mailboxd.options import TAKES_IDS, ConfigFile, DataDir, Json
from mailboxd.terminal import CommandError, print_result

if TYPE_CHECKING:
    from mailboxd.admin_session import AdminSession

identities_app = typer.Typer(no_args_is_help=True, help="Identities of the instance.")

Identity = Annotated[str, typer.Argument(metavar="IDENTITY_ID", help="The identity's id, 22 characters.")]


@identities_app.command("disable", context_settings=TAKES_IDS)
def disable_identity(
    identity_id: Identity, data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False
) -> None:
    """Give an identity's devices no token any more, and its keys to nobody, until it is enabled again.

    A token that a device holds already is good to its end, 15 minutes at most. To end a session at once and for good
    revoke the device.
    """
    _set(identity_id, data_dir, config_file, active=False, as_json=as_json)


@identities_app.command("enable", context_settings=TAKES_IDS)
def enable_identity(
    identity_id: Identity, data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False
) -> None:
    """Let a disabled identity act again; its mail that has not expired is still there."""
    _set(identity_id, data_dir, config_file, active=True, as_json=as_json)


def _set(identity_id: str, data_dir: DataDir, config_file: ConfigFile, *, active: bool, as_json: bool) -> None:
    from mailboxd.admin_session import run_admin
    from protocol.ids import IdentityId, id_from_text
    from store.identity_status import set_identity_status

    try:
        identity = IdentityId(id_from_text(identity_id))
    except ValueError as error:
        raise CommandError(f"{identity_id} is no identity id: {error}") from None

    async def change(session: AdminSession) -> bool | None:
        policy = await session.policy()
        return await set_identity_status(
            session.postgres,
            session.audit,
            identity,
            active=active,
            request_id=session.request_id,
            policy_version=policy.version,
        )

    changed = run_admin(data_dir, config_file, change)
    if changed is None:
        raise CommandError(f"there is no identity {identity_id}")
    status = "active" if active else "disabled"
    line = f"the identity is {status}" + ("" if changed else " already")
    print_result({"identity_id": identity_id, "status": status, "changed": changed}, as_json=as_json, lines=[line])
