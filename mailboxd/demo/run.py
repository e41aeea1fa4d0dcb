"""The demo from its first line to its last: server, policy, play, result."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from mailbox_client.errors import ClientError
from mailboxd.admin_session import admin_session
from mailboxd.borrowed_policy import borrowed
from mailboxd.demo.display import Display, choose_display
from mailboxd.demo.files import Outgoing, read_files
from mailboxd.demo.play import DemoFailed, Play
from mailboxd.demo.push import PushEndpoint
from mailboxd.terminal import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, CommandError
from mailboxd.up import serving
from mailboxd.up_plan import UpOptions
from protocol.errors import MailboxError

FILES_BYTES_MAX: Final = 100 * 1024 * 1024  # all of it waits in one mailbox, which holds 128 MiB by default
_PUSH_SETTING: Final = "MAILBOXD_PUSH_PRIVATE_NETWORKS_ALLOWED"
_PAIR_RATE: Final = "submit_rate_per_pair"


def run_demo(data_dir: Path, files: Sequence[Path], environ: Mapping[str, str], *, as_json: bool) -> int:
    """Play it and show it; 0 when everything came true, 1 when not. Raises CommandError when it cannot begin."""
    outgoing = _read(files or _default_files())
    try:
        return asyncio.run(_demo(data_dir, outgoing, environ, choose_display(as_json=as_json)))
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED


async def _demo(data_dir: Path, files: Sequence[Outgoing], environ: Mapping[str, str], display: Display) -> int:
    _stop_on(signal.SIGTERM)  # like Ctrl-C: the task is cancelled and everything started is stopped
    started = perf_counter()
    result: dict[str, Any] = {"ok": False, "files": len(files), "bytes": sum(len(file.content) for file in files)}
    options = UpOptions(data_dir, "127.0.0.1", 0, 0, 1)
    # The push endpoint of the demo lies on this machine; no other server lets clients name such an address.
    own_environ = {**environ, _PUSH_SETTING: "127.0.0.0/8"}
    with display:
        display.say("starting PostgreSQL, Valkey, a gateway and a worker")
        async with serving(options, own_environ) as server, _no_pair_rate(data_dir):
            display.say(f"the server is ready at {server['url']}")
            with tempfile.TemporaryDirectory(prefix="mailboxd-demo-") as workspace:
                async with PushEndpoint() as push:
                    play = Play(server["url"], push, files, Path(workspace), display)
                    try:
                        await play.run()
                        result["ok"] = True
                    except (DemoFailed, ClientError, MailboxError, TimeoutError) as error:
                        result["problem"] = str(error) or "it took too long"
                    except asyncio.CancelledError:
                        display.say("stopping everything that was started")  # takes seconds; silence looks like a hang
                        raise
                    result |= play.tally.report()
            result["seconds"] = round(perf_counter() - started, 2)
            display.say("stopping everything that was started")
        display.finish(result)
    return EXIT_OK if result["ok"] else EXIT_FAILED


@contextlib.asynccontextmanager
async def _no_pair_rate(data_dir: Path) -> AsyncIterator[None]:
    """One sender fills one mailbox here as fast as it can; the limit that protects strangers comes back afterwards."""
    async with (
        admin_session(data_dir, None) as session,
        borrowed(data_dir, session.policy_store, _PAIR_RATE, 0, request_id=session.request_id),
    ):
        yield


def _read(paths: Sequence[Path]) -> list[Outgoing]:
    try:
        size = sum(path.stat().st_size for path in paths)
        if size > FILES_BYTES_MAX:
            raise CommandError(f"the files have {size:,} bytes; the demo takes at most {FILES_BYTES_MAX:,} in all")
        return read_files(paths)
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise CommandError(str(error)) from None


def _default_files() -> list[Path]:
    """The README and the licence of this tree."""
    root = Path(__file__).resolve().parents[2]
    found = [path for path in (root / "README.md", root / "LICENSE") if path.is_file()]
    if not found:
        raise CommandError("name one or more files to send")
    return found


def _stop_on(number: signal.Signals) -> None:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
