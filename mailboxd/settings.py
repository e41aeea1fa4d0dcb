"""Where a command gets its settings: its options, the services of a data directory, the environment, a TOML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from mailboxd.running import LOGS_DIR, find_running
from runtime.config import FILE_SETTING, PREFIX, ConfigError, GatewayConfig, ProcessConfig, WorkerConfig, load_config

C = TypeVar("C", bound=ProcessConfig)


def load_settings(
    kind: type[C],
    *,
    data_dir: Path | None,
    config_file: Path | None,
    environ: Mapping[str, str] = os.environ,
    options: Mapping[str, str | None] | None = None,
) -> C:
    """The settings for one command. `data_dir` gives the DSNs and secrets of the services that `up` runs there.

    Raises ConfigError with every mistake, CommandError when nothing runs on `data_dir`.
    """
    if config_file is not None:
        environ = {**environ, FILE_SETTING: str(config_file)}
    return load_config(kind, environ, **_services_of(data_dir), **(options or {}))


def load_all_settings(
    *, data_dir: Path | None, config_file: Path | None, environ: Mapping[str, str] = os.environ
) -> dict[str, dict[str, Any]]:
    """The masked settings of a gateway and of a worker, as they would start now.

    With `data_dir` those of every process that `up` runs there, where it listens included. Raises ConfigError with the
    mistakes of all, each once.
    """
    problems: list[str] = []
    shown = {}
    if data_dir is not None:
        environ = {PREFIX + "LOOPBACK_EXEMPT": "true", **environ}  # as `up` starts its processes
    for part in _parts(data_dir):
        try:
            config = load_settings(
                part.kind, data_dir=data_dir, config_file=config_file, environ=environ, options=part.own
            )
            shown[part.name] = config.masked()
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ConfigError(problems)
    return shown


class _Part(NamedTuple):
    """One process to show, and what `up` has told it alone."""

    name: str
    kind: type[ProcessConfig]
    own: dict[str, str | None]


def _parts(data_dir: Path | None) -> list[_Part]:
    if data_dir is None:
        return [_Part("gateway", GatewayConfig, {}), _Part("worker", WorkerConfig, {})]
    running = find_running(data_dir)
    listens = [urlsplit(url).netloc for url in running.urls]
    *ops, workers_ops = (urlsplit(url).netloc for url in running.ops_urls)
    logs = {"log_dir": str(data_dir / LOGS_DIR)}
    names = ["gateway"] if len(listens) == 1 else [f"gateway-{number}" for number in range(1, len(listens) + 1)]
    return [
        *(
            _Part(name, GatewayConfig, {"listen": listen, "ops_listen": ops_listen, **logs})
            for name, listen, ops_listen in zip(names, listens, ops, strict=True)
        ),
        _Part("worker", WorkerConfig, {"ops_listen": workers_ops, **logs}),
    ]


def _services_of(data_dir: Path | None) -> dict[str, Any]:
    if data_dir is None:
        return {}
    running = find_running(data_dir)
    return {
        "postgres_dsn": running.postgres_dsn,
        "redis_url": running.redis_url,
        "secrets_dir": running.secrets_dir,
    }
