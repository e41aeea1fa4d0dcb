"""`mailboxd migrate …`: the schema of the database."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from mailboxd.options import ConfigFile, DataDir, Json
from mailboxd.terminal import CommandError, print_result, table

migrate_app = typer.Typer(
    no_args_is_help=True,
    help="Bring the database's schema up to this release, or back. Safe to interrupt and to repeat.",
)


@migrate_app.command("apply")
def apply(
    target: Annotated[str | None, typer.Option("--to", metavar="VERSION", help="Not further than this one.")] = None,
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Apply what is missing. The previous release goes on working on the new schema, so upgrade this first."""
    from migrations import runner

    applied = asyncio.run(runner.apply(_dsn(data_dir, config_file), target))
    lines = [f"applied {version}" for version in applied] or ["nothing to apply"]
    print_result({"applied": applied}, as_json=as_json, lines=lines)


@migrate_app.command("rollback")
def rollback(
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="How many of the newest to undo.")] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="VERSION", help="Undo everything after this one; none undoes all.")
    ] = None,
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Undo migrations. What they made is dropped, data included: stop all processes of the newer release first."""
    from migrations import runner

    if (steps is None) == (target is None):
        raise CommandError("say either --steps N or --to VERSION")
    undone = asyncio.run(runner.rollback(_dsn(data_dir, config_file), steps=steps, target=target))
    lines = [f"rolled back {version}" for version in undone] or ["nothing to roll back"]
    print_result({"rolled_back": undone}, as_json=as_json, lines=lines)


@migrate_app.command("backfill")
def backfill(
    name: Annotated[str, typer.Argument(help="What the migration's notes call it.")],
    rows_per_second: Annotated[int, typer.Option(min=1, help="The pace; live traffic goes first in any case.")] = 5_000,
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Fill old rows in after a migration, at a pace, while everything runs. Repeated, it goes on where it stopped."""
    from migrations.backfill import run_backfill
    from runtime.clock import SystemClock

    running = run_backfill(
        _dsn(data_dir, config_file), name, sleep=SystemClock().sleep, rows_per_second=rows_per_second
    )
    progress = asyncio.run(running)
    document = {"done": progress.done, "rows_changed": progress.rows_changed}
    print_result(document, as_json=as_json, lines=[f"{name} is done: {progress.rows_changed} rows"])


@migrate_app.command("status")
def status(data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False) -> None:
    """List all migrations and whether they are applied. Exit code 1 when one is missing, unfinished or changed."""
    from migrations import runner

    steps = asyncio.run(runner.status(_dsn(data_dir, config_file)))
    current = all(step.state in ("applied", "unknown") and not step.changed for step in steps)
    rows = [(step.version, step.state, "changed!" if step.changed else "", step.summary) for step in steps]
    document: dict[str, Any] = {
        "current": current,
        "migrations": [
            {"version": step.version, "name": step.name, "state": step.state, "changed": step.changed} for step in steps
        ],
    }
    print_result(document, as_json=as_json, lines=table(("version", "state", "", "summary"), rows))
    if not current:
        raise typer.Exit(1)


def _dsn(data_dir: DataDir, config_file: ConfigFile) -> str:
    from mailboxd.settings import load_settings
    from runtime.config import ProcessConfig

    return load_settings(ProcessConfig, data_dir=data_dir, config_file=config_file).postgres_dsn
