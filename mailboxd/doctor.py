"""`mailboxd doctor`: whether this machine and these services can carry the promises, each check with what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography import x509

from mailboxd.doctor_services import examine_postgres, examine_redis
from mailboxd.findings import Finding, Verdict
from mailboxd.settings import load_settings
from mailboxd.terminal import CommandError
from runtime.config import ConfigError, GatewayConfig
from runtime.key_rings import KeyringError
from runtime.keyring import KEYRING_FILE, Keyring

DISK_WARN_BYTES: Final = 2 * 1024**3
DISK_FAIL_BYTES: Final = 200 * 1024**2
SPARE_FILES: Final = 200  # beyond one a connection: database, Redis, logs
CERTIFICATE_WARN_S: Final = 14 * 86_400


async def examine(
    data_dir: Path | None, config_file: Path | None, environ: Mapping[str, str] = os.environ
) -> list[Finding]:
    """All findings. A check that needs what another one found missing is left out."""
    findings = [_python(), _wheels()]
    try:
        config = load_settings(GatewayConfig, data_dir=data_dir, config_file=config_file, environ=environ)
    except ConfigError as error:
        return [*findings, *(Finding("settings", Verdict.FAILED, problem) for problem in error.problems)]
    except CommandError as error:
        return [*findings, *(Finding("settings", Verdict.FAILED, line) for line in error.lines)]
    findings += [Finding("settings", Verdict.OK, "complete"), _files(config.connections_max), _disk(data_dir, config)]
    findings += _certificate(config.tls_certificate)
    keyring, found = _keyring(config.secrets_dir)
    return [
        *findings,
        found,
        *await examine_postgres(config.postgres_dsn, keyring),
        *await examine_redis(config.redis_url),
    ]


def _python() -> Finding:
    return Finding("python", Verdict.OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _wheels() -> Finding:
    """The parts that are compiled: without them everything works, too slowly to serve."""
    compiled = ("msgpack._cmsgpack", "asyncpg.protocol.protocol", "websockets.speedups", "aiohttp._http_parser")
    slow = [module.partition(".")[0] for module in compiled if importlib.util.find_spec(module) is None]
    if slow:
        return Finding("packages", Verdict.WARNING, f"without their compiled parts: {', '.join(slow)}; install wheels")
    names = ("asyncpg", "uvloop", "websockets", "aiohttp", "redis", "msgpack", "blake3", "cryptography")
    return Finding("packages", Verdict.OK, ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names))


def _files(connections_max: int) -> Finding:
    needed = connections_max + SPARE_FILES
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        told = f"at most {hard}, connections_max needs {needed}: raise the limit (LimitNOFILE) or lower the setting"
        return Finding("open files", Verdict.WARNING, told)
    return Finding("open files", Verdict.OK, f"at most {'unlimited' if hard == resource.RLIM_INFINITY else hard}")


def _disk(data_dir: Path | None, config: GatewayConfig) -> Finding:
    place = data_dir or config.log_dir or Path.cwd()
    free = shutil.disk_usage(place).free
    told = f"{free / 1024**3:.1f} GiB free at {place}"
    if free < DISK_FAIL_BYTES:
        return Finding("disk", Verdict.FAILED, f"{told}: make room, a full disk refuses all mail")
    return Finding("disk", Verdict.WARNING if free < DISK_WARN_BYTES else Verdict.OK, told)


def _certificate(path: Path | None) -> list[Finding]:
    if path is None:
        return []
    try:
        ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        return [Finding("tls certificate", Verdict.FAILED, f"{path} is not a PEM certificate: {error}")]
    left_s = ends.timestamp() - time.time()
    verdict = Verdict.FAILED if left_s <= 0 else Verdict.WARNING if left_s < CERTIFICATE_WARN_S else Verdict.OK
    return [Finding("tls certificate", verdict, f"good until {ends:%Y-%m-%d %H:%MZ}")]


def _keyring(secrets_dir: Path) -> tuple[Keyring | None, Finding]:
    try:
        keyring = Keyring.load(secrets_dir)
    except KeyringError as error:
        return None, Finding("keyring", Verdict.FAILED, str(error))
    return keyring, Finding("keyring", Verdict.OK, f"{secrets_dir / KEYRING_FILE}, readable by its owner only")
