"""Where a command gets its settings: its options, the services of a data directory, the environment, a TOML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from mailboxd.running import find_running
from runtime.config import FILE_SETTING, ConfigError, GatewayConfig, ProcessConfig, WorkerConfig, load_config

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

    Raises ConfigError with the mistakes of both, each once.
    """
    problems: list[str] = []
    shown = {}
    for name, kind in (("gateway", GatewayConfig), ("worker", WorkerConfig)):
        try:
            config = load_settings(kind, data_dir=data_dir, config_file=config_file, environ=environ)
            shown[name] = config.masked()
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ConfigError(problems)
    return shown


def _services_of(data_dir: Path | None) -> dict[str, Any]:
    if data_dir is None:
        return {}
    running = find_running(data_dir)
    return {
        "postgres_dsn": running.postgres_dsn,
        "redis_url": running.redis_url,
        "secrets_dir": running.secrets_dir,
    }
