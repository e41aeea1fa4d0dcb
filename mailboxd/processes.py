"""The edge of a serving process: settings read once, logs set up, then the process's own composition runs."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from mailboxd.parent import end_with
from mailboxd.settings import load_settings
from mailboxd.terminal import CommandError
from runtime import faultpoints, logs
from runtime.config import GatewayConfig, ProcessConfig, WorkerConfig


def run_gateway(
    data_dir: Path | None,
    config_file: Path | None,
    options: dict[str, str | None],
    *,
    parent_pid: int | None,
    log_name: str | None,
) -> int:
    """Serve until SIGTERM and return the exit code. Raises ConfigError, KeyringError and the like before serving."""
    from gateway.app import serve

    config = load_settings(GatewayConfig, data_dir=data_dir, config_file=config_file, options=options)
    _prepare(config, log_name or "gateway", parent_pid)
    return _run(serve(config))


def run_worker(
    data_dir: Path | None,
    config_file: Path | None,
    options: dict[str, str | None],
    *,
    parent_pid: int | None,
    log_name: str | None,
) -> int:
    """As `run_gateway`, for a worker."""
    from worker.app import serve

    config = load_settings(WorkerConfig, data_dir=data_dir, config_file=config_file, options=options)
    _prepare(config, log_name or "worker", parent_pid)
    return _run(serve(config))


def _run(serving: Coroutine[Any, Any, int]) -> int:
    try:
        return uvloop.run(serving)
    except OSError as error:
        # A port that is taken, a host that is not ours, a key file that cannot be read.
        raise CommandError(f"cannot serve: {error.strerror or error}") from None


def _prepare(config: ProcessConfig, name: str, parent_pid: int | None) -> None:
    if parent_pid is not None:
        end_with(parent_pid)
    logs.configure(name, level=config.log_level, directory=config.log_dir, retention_s=config.log_retention_s)
    faultpoints.arm_from_environment(os.environ)
