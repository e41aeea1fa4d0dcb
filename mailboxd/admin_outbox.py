"""`mailboxd admin dead-letters …`: tasks that failed for good, until somebody looks at them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mailboxd.options import TAKES_IDS, ConfigFile, DataDir, Json
from mailboxd.terminal import CommandError, pairs, print_result, table, time_text

if TYPE_CHECKING:
    from mailboxd.admin_session import AdminSession
    from store.audit import AuditType
    from store.outbox import DeadLetter

dead_letters_app = typer.Typer(no_args_is_help=True, help="Tasks that failed for good and wait for somebody to look.")
EventId = Annotated[str, typer.Argument(metavar="EVENT", help="As `dead-letters list` shows it.")]


@dead_letters_app.command("list")
def list_dead_letters(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000)] = 100,
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """List them, the oldest first."""
    from mailboxd.admin_session import run_admin
    from store.outbox import OutboxStore

    letters = run_admin(data_dir, config_file, lambda session: OutboxStore(session.postgres).dead_letters(limit))
    shown = [_shown(letter) for letter in letters]
    rows = [
        (letter["event_id"], letter["task_type"], letter["attempts"], time_text(letter["updated_ms"]), letter["reason"])
        for letter in shown
    ]
    lines = table(("event", "task", "attempts", "since", "reason"), rows)
    print_result({"dead_letters": shown}, as_json=as_json, lines=lines)


@dead_letters_app.command("show", context_settings=TAKES_IDS)
def show_dead_letter(
    event_id: EventId, data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False
) -> None:
    """Show one of them."""
    from mailboxd.admin_session import run_admin
    from store.outbox import OutboxStore

    event = _event(event_id)
    letter = run_admin(data_dir, config_file, lambda session: OutboxStore(session.postgres).dead_letter(event))
    if letter is None:
        raise _not_there(event_id)
    shown = _shown(letter)
    print_result(shown, as_json=as_json, lines=pairs(shown))


@dead_letters_app.command("requeue", context_settings=TAKES_IDS)
def requeue_dead_letter(
    event_id: EventId, data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False
) -> None:
    """Try the task again. Where its device has a newer open task, it merges into that one."""
    from store.audit import AuditType
    from store.outbox import OutboxStore

    def requeue(outbox: OutboxStore, connection: Any, event: bytes) -> Awaitable[bool]:
        return outbox.requeue_dead_letter(connection, event)

    _change(event_id, data_dir, config_file, as_json, AuditType.DEAD_LETTER_REQUEUED, "requeued", requeue)


@dead_letters_app.command("drop", context_settings=TAKES_IDS)
def drop_dead_letter(
    event_id: EventId, data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False
) -> None:
    """Forget the task. No envelope is touched."""
    from store.audit import AuditType
    from store.outbox import OutboxStore

    def drop(outbox: OutboxStore, connection: Any, event: bytes) -> Awaitable[bool]:
        return outbox.drop_dead_letter(connection, event)

    _change(event_id, data_dir, config_file, as_json, AuditType.DEAD_LETTER_DROPPED, "dropped", drop)


def _change(
    event_id: str,
    data_dir: DataDir,
    config_file: ConfigFile,
    as_json: bool,
    audit_type: AuditType,
    what: str,
    change: Callable[[Any, Any, bytes], Awaitable[bool]],
) -> None:
    from mailboxd.admin_session import run_admin
    from store.audit import AuditOutcome
    from store.outbox import OutboxStore

    event = _event(event_id)

    async def change_and_record(session: AdminSession) -> bool:
        policy = await session.policy()
        async with session.postgres.transaction() as connection:
            if not await change(OutboxStore(session.postgres), connection, event):
                return False
            await session.audit.record(
                connection,
                audit_type,
                AuditOutcome.DONE,
                request_id=session.request_id,
                policy_version=policy.version,
            )
        return True

    if not run_admin(data_dir, config_file, change_and_record):
        raise _not_there(event_id)
    print_result({"event_id": event_id, "state": what}, as_json=as_json, lines=[f"{event_id} is {what}"])


def _shown(letter: DeadLetter) -> dict[str, Any]:
    from protocol.ids import to_text

    return {**letter._asdict(), "event_id": to_text(letter.event_id)}


def _event(text: str) -> bytes:
    from protocol.ids import id_from_text

    try:
        return id_from_text(text)
    except ValueError as error:
        raise CommandError(f"{text} is no event id: {error}") from None


def _not_there(event_id: str) -> CommandError:
    return CommandError(f"there is no dead letter {event_id}")
