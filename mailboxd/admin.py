"""`mailboxd admin …`: the operator's commands. Each part has its module; here they are put together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mailboxd.admin_devices import devices_app
from mailboxd.admin_identities import identities_app
from mailboxd.admin_keys import keys_app
from mailboxd.admin_outbox import dead_letters_app
from mailboxd.admin_retention import retention_app
from mailboxd.options import ConfigFile, DataDir, Json
from mailboxd.terminal import CommandError, pairs, print_result, table, time_text

admin_app = typer.Typer(
    no_args_is_help=True, help="Look after an instance: policy, status, invites, devices, keys, retention, audit."
)
policy_app = typer.Typer(
    no_args_is_help=True, help="Limits, retention and rates of the instance, in effect within 5 s."
)
invites_app = typer.Typer(no_args_is_help=True, help="Single-use invites for registration=invite.")
audit_app = typer.Typer(no_args_is_help=True, help="What was done to the instance, without names.")
admin_app.add_typer(policy_app, name="policy")
admin_app.add_typer(invites_app, name="invites")
admin_app.add_typer(devices_app, name="devices")
admin_app.add_typer(identities_app, name="identities")
admin_app.add_typer(keys_app, name="keys")
admin_app.add_typer(dead_letters_app, name="dead-letters")
admin_app.add_typer(retention_app, name="retention")
admin_app.add_typer(audit_app, name="audit")

INVITE_LIFETIME_S_MAX = 30 * 86_400


@policy_app.command("show")
def show_policy(data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False) -> None:
    """Show every setting, its value and its bounds."""
    from mailboxd.admin_session import run_admin
    from store.policy_rules import describe_bounds

    policy = run_admin(data_dir, config_file, lambda session: session.policy())
    values = policy.to_mapping()
    shown = {key: ",".join(map(str, value)) if isinstance(value, list) else value for key, value in values.items()}
    lines = table(("setting", "value", "allowed"), [(key, shown[key], describe_bounds(key)) for key in values])
    print_result({"version": policy.version, **values}, as_json=as_json, lines=[f"version {policy.version}", *lines])


@policy_app.command("set")
def set_policy(
    assignments: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Applied together, all or none.")],
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Change settings, all or none; every mistake is told at once. All processes follow within 5 s, without a restart.

    Retention changes touch new envelopes only. `mailboxd admin policy show` lists the settings and their bounds.
    """
    from mailboxd.admin_session import AdminSession, run_admin
    from store.policy_rules import Policy

    async def change(session: AdminSession) -> tuple[Policy, Policy]:
        before = await session.policy()
        return before, await session.policy_store.change(assignments, request_id=session.request_id)

    before, after = run_admin(data_dir, config_file, change)
    old, new = before.to_mapping(), after.to_mapping()
    changed = [key for key in new if old[key] != new[key]]
    lines = [f"{key}: {old[key]} -> {new[key]}" for key in changed] or ["nothing differs; the policy stays as it is"]
    print_result({"version": after.version, **new}, as_json=as_json, lines=[*lines, f"version {after.version}"])


@admin_app.command("status")
def status(data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False) -> None:
    """Count devices, waiting envelopes, wake intents and push routes, and how far behind queue and clean-up are."""
    from mailboxd.admin_session import AdminSession, run_admin
    from store.status import read_status
    from store.work_status import read_work

    async def read(session: AdminSession) -> dict[str, Any]:
        policy = await session.policy()
        status = await read_status(session.postgres)
        return {**status, **await read_work(session.postgres, session.config.redis_url, policy)}

    shown = run_admin(data_dir, config_file, read)
    # A group is one line: all of it is on one screen.
    lines = {
        name: ", ".join(f"{part} {value}" for part, value in given.items()) if isinstance(given, dict) else given
        for name, given in shown.items()
    }
    print_result(shown, as_json=as_json, lines=pairs(lines))


@admin_app.command("after-restore")
def after_restore(
    revocations: Annotated[
        Path | None,
        typer.Option("--revocations", metavar="FILE", help="Revocations kept outside, see `devices revocations`."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also when this restore was dealt with already.")] = False,
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Run this after the database was restored to an earlier moment, before anything writes to it.

    Repairs counters, applies revocations again, hands out no one-time key twice, queues wakes anew, and makes every
    cursor of before be refused once, so that all devices read again from their oldest unacknowledged envelope.
    """
    from mailboxd.admin_restore import after_restore

    report = after_restore(data_dir, config_file, revocations=revocations, force=force)
    print_result(report, as_json=as_json, lines=pairs(report))


@invites_app.command("create")
def create_invite(
    lifetime_s: Annotated[
        int, typer.Option("--lifetime-s", min=60, max=INVITE_LIFETIME_S_MAX, help="How long it may be used.")
    ] = 7 * 86_400,
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Make an invite for one registration. It is shown this once and stored as a hash only."""
    from mailboxd.admin_session import AdminSession, run_admin
    from store.invites import NewInvite

    async def create(session: AdminSession) -> NewInvite:
        return await (await session.invites()).create(lifetime_s=lifetime_s, request_id=session.request_id)

    result = run_admin(data_dir, config_file, create)._asdict()
    print_result(result, as_json=as_json, lines=pairs(result))


@invites_app.command("list")
def list_invites(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000)] = 100,
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """List the newest invites by their tags, which admit nobody."""
    from mailboxd.admin_session import AdminSession, run_admin
    from store.invites import InviteStatus

    async def listed(session: AdminSession) -> tuple[InviteStatus, ...]:
        return await (await session.invites()).list(limit=limit)

    invites = run_admin(data_dir, config_file, listed)
    lines = table(
        ("tag", "created", "expires", "status"),
        [(i.tag, time_text(i.created_at_ms), time_text(i.expires_at_ms), i.status) for i in invites],
    )
    print_result({"invites": [invite._asdict() for invite in invites]}, as_json=as_json, lines=lines)


@invites_app.command("revoke")
def revoke_invite(
    tag: Annotated[str, typer.Argument(help="As `invites list` shows it.")],
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Make an open invite unusable."""
    from mailboxd.admin_session import AdminSession, run_admin

    async def revoke(session: AdminSession) -> bool:
        return await (await session.invites()).revoke(tag, request_id=session.request_id)

    if not run_admin(data_dir, config_file, revoke):
        raise CommandError(f"there is no open invite with the tag {tag}")
    print_result({"tag": tag, "status": "revoked"}, as_json=as_json, lines=[f"invite {tag} is revoked"])


@audit_app.command("list")
def list_audit(
    event_type: Annotated[str | None, typer.Option("--type", help="Only events of this type.")] = None,
    before: Annotated[int | None, typer.Option("--before", help="Only events older than this audit id.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000)] = 100,
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """List audit events, the newest first."""
    from mailboxd.admin_session import AdminSession, run_admin
    from store.audit import AuditEvent, AuditType

    known = [kind.value for kind in AuditType]
    if event_type is not None and event_type not in known:
        raise CommandError(f"there is no event type {event_type}; there are {', '.join(known)}")

    async def listed(session: AdminSession) -> tuple[AuditEvent, ...]:
        kind = AuditType(event_type) if event_type is not None else None
        return await session.audit.list(limit=limit, before=before, event_type=kind)

    events = run_admin(data_dir, config_file, listed)
    rows = [
        (
            e.audit_id,
            time_text(e.created_ms),
            e.event_type,
            e.outcome,
            e.actor_hash or "",
            e.policy_version,
            e.detail or "",
        )
        for e in events
    ]
    lines = table(("id", "time", "type", "outcome", "actor", "policy", "detail"), rows)
    print_result({"events": [event._asdict() for event in events]}, as_json=as_json, lines=lines)
