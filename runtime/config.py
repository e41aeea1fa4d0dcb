"""What an operator may set: read once at the edge, checked as a whole, passed on, never looked up.

Each setting is an environment variable `MAILBOXD_<NAME>` or `<name>` in the TOML file that `MAILBOXD_CONFIG` names; the
environment wins. One file serves all processes: each takes what it knows. What belongs to the instance and not to a
process (limits, retention, rates) is the policy in the database instead.
"""

from __future__ import annotations

import difflib
import ssl
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from runtime.setting_types import Listen, ListenAddress, Networks, Origins

PREFIX: Final = "MAILBOXD_"
FILE_SETTING: Final = "MAILBOXD_CONFIG"
# Read elsewhere, each by the one who needs it.
_OTHER_NAMES: Final = frozenset({FILE_SETTING, "MAILBOXD_FAULTPOINTS"})
_OTHER_PREFIXES: Final = ("MAILBOXD_TEST_",)


class ConfigError(Exception):
    """Every mistake in the settings, each with the setting's name."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Contradiction(NamedTuple):
    """Settings that are fine alone and not together."""

    settings: tuple[str, ...]
    message: str


class ProcessConfig(BaseSettings):
    """What every command that needs the services has to know."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", arbitrary_types_allowed=True)

    postgres_dsn: str = Field(min_length=1, repr=False, json_schema_extra={"secret": True})
    redis_url: str = Field(min_length=1, repr=False, json_schema_extra={"secret": True})
    secrets_dir: Path = Path(".mailboxd/secrets")  # the keyring; must not be in a database backup
    postgres_pool_min: int = Field(default=2, ge=1, le=200)
    postgres_pool_max: int = Field(default=10, ge=2, le=500)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_dir: Path | None = None  # none: stderr
    log_retention_s: int = Field(default=604_800, ge=3_600, le=2_592_000)  # until the policy is read

    @field_validator("postgres_dsn")
    @classmethod
    def _is_postgres(cls, value: str) -> str:
        if urlsplit(value).scheme not in ("postgres", "postgresql"):
            raise ValueError("must start with postgresql://")
        return value

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, value: str) -> str:
        known = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
        if urlsplit(value).scheme not in known:
            raise ValueError(f"must start with one of {', '.join(f'{scheme}://' for scheme in known)}")
        return value

    @model_validator(mode="after")
    def _does_not_contradict_itself(self) -> Self:
        if found := list(self._contradictions()):
            raise PydanticCustomError("contradiction", "the settings contradict each other", {"found": found})
        return self

    def _contradictions(self) -> Iterator[Contradiction]:
        if self.postgres_pool_min > self.postgres_pool_max:
            yield Contradiction(("postgres_pool_min", "postgres_pool_max"), "the minimum is above the maximum")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # Making a config never looks anything up: `load_config` alone reads the environment and the file.
        return (init_settings,)

    def masked(self) -> dict[str, Any]:
        """The effective settings for a person to read: secrets by their place only, everything JSON-ready."""
        shown = self.model_dump(mode="json")
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and extra.get("secret") and shown[name] is not None:
                shown[name] = mask_url(shown[name])
        return shown


class GatewayConfig(ProcessConfig):
    """One gateway process: the door that devices use and the operations port."""

    listen: Listen = ListenAddress("127.0.0.1", 8080)
    ops_listen: Listen = ListenAddress("127.0.0.1", 9090)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    heartbeat_s: int = Field(default=45, ge=5, le=300)  # WIRE, "Heartbeat"
    hello_timeout_s: float = Field(default=10.0, gt=0, le=60)
    sweep_s: float = Field(default=15.0, ge=0.5, le=60)  # how late a message is when its wake is lost
    sweep_without_redis_s: float = Field(default=2.0, ge=0.5, le=60)
    drain_rate_per_s: int = Field(default=200, ge=1, le=100_000)  # connections told to go away
    drain_deadline_s: float = Field(default=30.0, ge=0, le=3_600)
    connections_max: int = Field(default=50_000, ge=1, le=1_000_000)
    inbound_bytes_max: int = Field(default=268_435_456, ge=16_777_216)  # one budget a process, partial frames included
    session_inbound_bytes_max: int = Field(default=8_388_608, ge=1_048_576)
    trusted_proxies: Networks = ()  # whose X-Forwarded-For counts
    proxy_protocol: bool = False  # connections of those proxies must begin with a PROXY header (version 1 or 2)
    allowed_origins: Origins = ()  # browsers' Origin header; none: no browser may connect, apps have none
    token_clock_skew_s: int = Field(default=30, ge=0, le=120)  # how far gateways' clocks may lie apart
    request_timeout_s: float = Field(default=30.0, gt=0, le=600)  # within which an HTTP request must have arrived
    long_polls_max: int = Field(default=10_000, ge=0, le=1_000_000)  # HTTP requests that wait for mail
    loopback_exempt: bool = False  # per-address limits skip loopback; `mailboxd up` sets it

    def _contradictions(self) -> Iterator[Contradiction]:
        yield from super()._contradictions()
        if (self.tls_certificate is None) != (self.tls_key is None):
            yield Contradiction(("tls_certificate", "tls_key"), "belong together: set both or neither")
        elif self.tls_certificate is not None and self.tls_key is not None:
            try:
                # A key with a passphrase is a mistake as well: without an answer here OpenSSL would ask the terminal.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_certificate, self.tls_key, password="")
            except OSError as error:  # SSLError is one
                reason = error.strerror if not isinstance(error, ssl.SSLError) else error.reason or "not a PEM file"
                yield Contradiction(("tls_certificate", "tls_key"), f"cannot be used together ({reason})")
        if self.proxy_protocol and not self.trusted_proxies:
            yield Contradiction(
                ("proxy_protocol", "trusted_proxies"), "name the proxies whose PROXY header is believed"
            )

    @field_validator("tls_certificate", "tls_key")
    @classmethod
    def _is_file(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError("there is no such file")
        return value


class WorkerConfig(ProcessConfig):
    """One worker process."""

    ops_listen: Listen = ListenAddress("127.0.0.1", 9091)
    push_private_networks_allowed: Networks = ()  # push endpoints may lie in these; nowhere else but the internet
    push_contact: str | None = None  # VAPID's `sub`: a mailto: or https: URL that push services can reach you by
    push_concurrency: int = Field(default=64, ge=1, le=1_000)
    apns_key_file: Path | None = None  # Apple's .p8; with it the next two
    apns_key_id: str | None = Field(default=None, min_length=1, max_length=64)
    apns_team_id: str | None = Field(default=None, min_length=1, max_length=64)
    apns_url: str = Field(default="https://api.push.apple.com", pattern="^https://")  # the sandbox has another
    apns_alert_text: str = Field(default="New message", min_length=1, max_length=200)  # of routes in mode `alert`
    fcm_credentials_file: Path | None = None  # the JSON file of a service account
    fcm_url: str = Field(default="https://fcm.googleapis.com", pattern="^https://")
    wake_repeat_s: int = Field(default=30, ge=1, le=1_200)  # DESIGN, "Outbox, queue, wake push"
    job_concurrency: int = Field(default=64, ge=1, le=1_000)
    cleanup_s: float = Field(default=5.0, ge=0.1, le=60)
    dispatch_poll_s: float = Field(default=1.0, ge=0.05, le=60)
    drain_deadline_s: float = Field(default=30.0, ge=0, le=3_600)

    def _contradictions(self) -> Iterator[Contradiction]:
        yield from super()._contradictions()
        if len({setting is None for setting in (self.apns_key_file, self.apns_key_id, self.apns_team_id)}) > 1:
            names = ("apns_key_file", "apns_key_id", "apns_team_id")
            yield Contradiction(names, "belong together: set all three or none")

    @field_validator("apns_key_file", "fcm_credentials_file")
    @classmethod
    def _is_file(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError("there is no such file")
        return value


_KINDS: Final[tuple[type[ProcessConfig], ...]] = (GatewayConfig, WorkerConfig)
C = TypeVar("C", bound=ProcessConfig)


def load_config(kind: type[C], environ: Mapping[str, str], **overrides: Any) -> C:
    """Return the settings for one kind of process: overrides, then environment, then file, then defaults.

    An override that is None counts as not given. Raises ConfigError with every mistake at once; an unknown name is a
    mistake too, since a misspelt limit would otherwise silently not hold.
    """
    problems: list[str] = []
    given = _from_file(environ, problems) | _from_environment(environ, problems)
    values = {name: value for name, value in given.items() if name in kind.model_fields}
    values |= {name: value for name, value in overrides.items() if value is not None}
    config, wrong, found = _attempt(kind, values)
    problems += wrong.values()
    if wrong:
        # Once more with stand-ins for what is wrong, so that contradictions among the rest are told as well.
        stand_ins = {name: _STAND_INS[name] for name in wrong if name in _STAND_INS}
        _, _, found = _attempt(kind, {name: value for name, value in values.items() if name not in wrong} | stand_ins)
    problems += [
        f"{', '.join(PREFIX + name.upper() for name in settings)}: {message}"
        for settings, message in found
        if wrong.keys().isdisjoint(settings)
    ]
    if problems or config is None:
        raise ConfigError(problems)
    return config


_STAND_INS: Final[Mapping[str, str]] = {"postgres_dsn": "postgresql://", "redis_url": "redis://"}


def _attempt(kind: type[C], values: Mapping[str, Any]) -> tuple[C | None, dict[str, str], list[Contradiction]]:
    """The config, or what is wrong with it: by setting, and between settings."""
    try:
        return kind(**values), {}, []
    except ValidationError as error:
        wrong: dict[str, str] = {}
        found: list[Contradiction] = []
        for problem in error.errors(include_url=False, include_input=False):
            if problem["type"] == "contradiction":
                found += problem["ctx"]["found"]
            else:
                wrong.setdefault(str(problem["loc"][0]), _told(problem))
        return None, wrong, found


def known_settings() -> frozenset[str]:
    """All names, lower case, that some process takes."""
    return frozenset(name for kind in _KINDS for name in kind.model_fields)


def mask_url(url: str) -> str:
    """The same address without its user, password and query values."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    place = parts.netloc.rpartition("@")[2]
    login = "***@" if "@" in parts.netloc else ""
    return f"{parts.scheme}://{login}{place}{parts.path}{'?***' if parts.query else ''}"


def _from_file(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    path = environ.get(FILE_SETTING)
    if not path:
        return {}
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{FILE_SETTING}: the file cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})")
        return {}
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{FILE_SETTING}: not TOML: {error}")
        return {}
    problems += [_unknown(name, known_settings()) for name in values if name not in known_settings()]
    return {name: value for name, value in values.items() if name in known_settings()}


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable in _OTHER_NAMES or variable.startswith(_OTHER_PREFIXES):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if variable == variable.upper() and name in known_settings():
            values[name] = value
        else:
            problems.append(_unknown(variable, {PREFIX + known.upper() for known in known_settings()}))
    return values


def _unknown(shown: str, known: frozenset[str] | set[str]) -> str:
    # Without the prefix: that all names share it makes none of them alike.
    prefix = PREFIX if shown.startswith(PREFIX) else ""
    close = difflib.get_close_matches(shown.removeprefix(prefix), [one.removeprefix(prefix) for one in known], n=1)
    return f"{shown}: there is no such setting{f'; did you mean {prefix}{close[0]}?' if close else ''}"


def _told(problem: Any) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "missing":
        message = "is not set"
    return f"{PREFIX}{str(problem['loc'][0]).upper()}: {message[:1].lower()}{message[1:]}"
