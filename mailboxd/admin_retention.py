"""`mailboxd admin retention …`: a shorter life for what is stored already, seen first, then done (seed 000, 7.3)."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from mailboxd.options import ConfigFile, DataDir, Json
from mailboxd.terminal import pairs, print_result

if TYPE_CHECKING:
    from mailboxd.admin_session import AdminSession
    from store.retention import RetentionPreview, RetentionProgress

retention_app = typer.Typer(
    no_args_is_help=True,
    help=(
        "A policy change touches new envelopes only. These commands apply a shorter life to what is stored already; "
        "nothing is ever made to live longer."
    ),
)
LongestS = Annotated[
    int | None,
    typer.Option(
        "--longest-s", min=60, max=2_592_000, help="Longest life in seconds; default: the policy's ttl_s_max."
    ),
]


@retention_app.command("preview")
def preview(
    longest_s: LongestS = None, data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False
) -> None:
    """Say what `apply` would do now: whose life is shortened, and what of it is over at once. Changes nothing."""
    from dataclasses import asdict

    from mailboxd.admin_session import run_admin
    from store.retention import RetentionStore

    async def previewed(session: AdminSession) -> tuple[int, RetentionPreview]:
        longest = await _longest_s(session, longest_s)
        return longest, await RetentionStore(session.postgres).preview(timedelta(seconds=longest))

    longest, found = run_admin(data_dir, config_file, previewed)
    shown = {"longest_s": longest, **asdict(found)}
    print_result(shown, as_json=as_json, lines=pairs(shown))


@retention_app.command("apply")
def apply(
    longest_s: LongestS = None, data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False
) -> None:
    """Shorten the life of everything stored, in small steps beside the traffic; audited.

    Interrupted, it can simply be run again. What is over then is removed by the worker's clean-up.
    """
    from mailboxd.admin_session import run_admin
    from store.retention import RetentionStore

    async def applied(session: AdminSession) -> tuple[int, RetentionProgress | None]:
        policy = await session.policy()
        longest = await _longest_s(session, longest_s)
        progress = None
        steps = RetentionStore(session.postgres).apply(
            timedelta(seconds=longest), session.audit, policy_version=policy.version
        )
        async for progress in steps:
            print(f"{progress.envelopes} envelopes shortened so far", file=sys.stderr, flush=True)
        return longest, progress

    longest, progress = run_admin(data_dir, config_file, applied)
    shown = {
        "longest_s": longest,
        "shortened_envelopes": progress.envelopes if progress else 0,
        "shortened_bytes": progress.bytes if progress else 0,
    }
    print_result(shown, as_json=as_json, lines=pairs(shown))


async def _longest_s(session: AdminSession, asked: int | None) -> int:
    return asked if asked is not None else (await session.policy()).ttl_s_max
