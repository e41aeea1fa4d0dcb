"""Logs: one JSON object a line, no secrets by construction, devices only as a tag that changes every day.

The library loggers (aiohttp, websockets, asyncpg, redis) go the same way as the project's own.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import structlog
from blake3 import blake3

from runtime.clock import Clock
from runtime.log_files import RetainedLogFile
from runtime.redaction import redact, scrub

LEVELS: Final = ("debug", "info", "warning", "error")
_DAY_MS: Final = 86_400_000
_FRAMES_MAX: Final = 30
SWEEP_SECONDS: Final = 30.0


def configure(process: str, *, level: str = "info", directory: Path | None = None, retention_s: int = 604_800) -> None:
    """Send all logs of this process to stderr, or to `directory/<process>.log` where one is given.

    Call it once, at the edge. Lines in files are gone after `retention_s`, at the latest when the file's own part of
    that time is over (see `log_files`).
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            functools.partial(_name_process, process),
            _show_exception,
            redact,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler: logging.Handler
    if directory is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = RetainedLogFile(directory / f"{process}.log", retention_s=retention_s)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    # One line per connection or request is neither wanted nor affordable.
    for noisy in ("aiohttp.access", "websockets", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


async def keep_files(retention_s: Callable[[], int], clock: Clock, progress: Callable[[], None]) -> None:
    """Let no line in this process's files outlive the retention as it is now; ends by cancellation only."""
    while True:
        sweep_files(retention_s())
        progress()
        await clock.sleep(SWEEP_SECONDS)


def sweep_files(retention_s: int) -> None:
    """Once what `keep_files` does again and again."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, RetainedLogFile):
            handler.set_retention(retention_s)
            handler.sweep()


class DeviceTags:
    """Names a device in logs by a keyed hash that nobody can link from one UTC day to the next, nor turn back."""

    def __init__(self, log_key: bytes, clock: Clock) -> None:
        self._log_key = log_key
        self._clock = clock
        self._day = -1
        self._day_key = b""

    def tag(self, device_id: bytes) -> str:
        """16 hex digits, the same for one device all through one UTC day. For fields named `device_tag`."""
        day = self._clock.wall_ms() // _DAY_MS
        if day != self._day:
            self._day_key = blake3(day.to_bytes(8, "big"), key=self._log_key).digest()
            self._day = day
        return blake3(device_id, key=self._day_key).hexdigest(8)


def _name_process(
    process: str, _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    event["process"] = process
    return event


def _show_exception(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Types, messages and places; never local variables or source lines, which may hold values."""
    shown = event.pop("exc_info", None)
    if not shown:
        return event
    error = shown[1] if isinstance(shown, tuple) else shown if isinstance(shown, BaseException) else sys.exc_info()[1]
    chain: list[dict[str, Any]] = []
    while error is not None and len(chain) < 5:
        chain.append({"type": type(error).__name__, "message": scrub(str(error)), "at": _places(error.__traceback__)})
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    event["error"] = chain
    return event


def _places(traceback: TracebackType | None) -> list[str]:
    places: list[str] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        places.append(f"{Path(code.co_filename).name}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return places[-_FRAMES_MAX:]
