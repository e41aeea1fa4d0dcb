"""The instance policy as a value: its keys, defaults, hard bounds and contradictions (DESIGN, "Instance policy").

Pure. A policy that exists is valid: whoever builds one from text, from the database or from another one gets a
`Policy` that keeps every bound, or a `PolicyError` that names every mistake at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from protocol.limits import MAX_FRAME_BYTES, WireLimits

DAY_S: Final = 86_400
REGISTRATION_MODES: Final = ("open", "invite", "closed")
PROTOCOL_VERSIONS_MAX: Final = 64  # how many a policy may list
BURST_MIN: Final = 64  # one SEND of 64 envelopes, or one envelope of 1 MiB in the per-pair rate's units, always fits

PolicyValue: TypeAlias = int | str | tuple[int, ...]


class PolicyError(Exception):
    """One or more settings of a policy are wrong; `mistakes` has a line for each, naming its key."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(self.mistakes))


class Bounds(NamedTuple):
    """The hard bounds of an integer setting, both ends allowed."""

    low: int
    high: int
    zero_means_no_limit: bool = False

    def __str__(self) -> str:
        return f"{self.low}..{self.high}" + (" (0 = no limit)" if self.zero_means_no_limit else "")


_RATE: Final = Bounds(0, 1_000_000, zero_means_no_limit=True)
_BURST: Final = Bounds(BURST_MIN, 10_000_000)

BOUNDS: Final[Mapping[str, Bounds]] = MappingProxyType(
    {
        "envelope_bytes_max": Bounds(256, 1_048_576),
        "pending_entries_max": Bounds(1, 1_000_000),
        "pending_bytes_max": Bounds(65_536, 4_294_967_296),
        "ttl_s_min": Bounds(1, DAY_S),
        "ttl_s_default": Bounds(1, 30 * DAY_S),
        "ttl_s_max": Bounds(DAY_S, 30 * DAY_S),
        "submit_rate_per_device": _RATE,
        "submit_burst_per_device": _BURST,
        "submit_rate_per_ip": _RATE,
        "submit_burst_per_ip": _BURST,
        "submit_rate_per_pair": _RATE,
        "submit_burst_per_pair": _BURST,
        "registrations_per_ip_per_hour": _RATE,
        "connections_per_ip": _RATE,
        "handshakes_per_second": _RATE,
        "prekey_claims_per_claimer_per_hour": Bounds(1, 1_000_000),
        "prekey_claims_per_target_per_hour": Bounds(1, 1_000_000),
        "max_active_devices_per_identity": Bounds(1, 16),
        "idempotency_ttl_s": Bounds(DAY_S, 30 * DAY_S),
        "client_dedup_ttl_s": Bounds(7_200, DAY_S),
        "acked_cleanup_s": Bounds(0, 3_000),
        "challenge_ttl_s": Bounds(15, 300),
        "audit_retention_s": Bounds(DAY_S, 365 * DAY_S),
        "completed_outbox_retention_s": Bounds(3_600, 30 * DAY_S),
        "log_retention_s": Bounds(3_600, 30 * DAY_S),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What an instance allows. Rates are per second unless the name says otherwise, sizes in bytes, times in seconds.

    `version` rises with every change; processes apply a policy when the version differs, since a restore takes it back.
    """

    version: int = 1

    registration: Literal["open", "invite", "closed"] = "closed"
    protocol_versions: tuple[int, ...] = (1,)
    envelope_bytes_max: int = 65_536
    pending_entries_max: int = 10_000
    pending_bytes_max: int = 134_217_728
    ttl_s_min: int = 60
    ttl_s_default: int = 7 * DAY_S
    ttl_s_max: int = 7 * DAY_S
    submit_rate_per_device: int = 50
    submit_burst_per_device: int = 500
    submit_rate_per_ip: int = 200
    submit_burst_per_ip: int = 2_000
    submit_rate_per_pair: int = 5
    submit_burst_per_pair: int = 500
    registrations_per_ip_per_hour: int = 30
    connections_per_ip: int = 200
    handshakes_per_second: int = 500  # per gateway
    prekey_claims_per_claimer_per_hour: int = 300
    prekey_claims_per_target_per_hour: int = 300
    max_active_devices_per_identity: int = 1
    idempotency_ttl_s: int = DAY_S
    client_dedup_ttl_s: int = 7_200
    acked_cleanup_s: int = 600
    challenge_ttl_s: int = 60
    audit_retention_s: int = 30 * DAY_S
    completed_outbox_retention_s: int = DAY_S
    log_retention_s: int = 7 * DAY_S

    def __post_init__(self) -> None:
        if mistakes := [*_out_of_bounds(self), *_contradictions(self)]:
            raise PolicyError(mistakes)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, version: int) -> Policy:
        """A stored policy. Missing keys take their default, unknown ones (a newer release's) are left alone."""
        known = {key: values[key] for key in KEYS if key in values}
        if isinstance(known.get("protocol_versions"), list):
            known["protocol_versions"] = tuple(known["protocol_versions"])
        return cls(version=version, **known)

    def to_mapping(self) -> dict[str, Any]:
        """All settings as plain values for JSON; without the version, which is stored beside them."""
        values = asdict(self)
        del values["version"]
        return {**values, "protocol_versions": list(self.protocol_versions)}

    def changed(self, assignments: Iterable[str]) -> Policy:
        """This policy with `KEY=VALUE` texts applied, all or none; the version is the caller's to raise."""
        changes, mistakes = _parse(assignments)
        try:
            # Bounds are judged even when another assignment did not parse: every mistake is told at once.
            policy = replace(self, **changes)
        except PolicyError as error:
            raise PolicyError([*mistakes, *error.mistakes]) from None
        if mistakes:
            raise PolicyError(mistakes)
        return policy

    def wire_limits(self) -> WireLimits:
        return WireLimits(
            max_frame_bytes=MAX_FRAME_BYTES,
            envelope_bytes_max=self.envelope_bytes_max,
            ttl_s_min=self.ttl_s_min,
            ttl_s_default=self.ttl_s_default,
            ttl_s_max=self.ttl_s_max,
        )


KEYS: Final = tuple(field.name for field in fields(Policy) if field.name != "version")


def describe_bounds(key: str) -> str:
    """What a value of this key may be, for `policy show` and for error lines."""
    if key == "registration":
        return ", ".join(REGISTRATION_MODES)
    if key == "protocol_versions":
        return "a comma list of 1..65535"
    return str(BOUNDS[key])


def _parse(assignments: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    changes: dict[str, Any] = {}
    mistakes: list[str] = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            mistakes.append(f"{assignment!r} is not KEY=VALUE")
        elif key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            mistakes.append(f"{key}: there is no such setting" + (f"; did you mean {near[0]}?" if near else ""))
        elif key in changes:
            mistakes.append(f"{key}: given twice")
        elif (value := _parse_value(key, text)) is None:
            mistakes.append(f"{key}: {text!r} is not a valid value; allowed: {describe_bounds(key)}")
        else:
            changes[key] = value
    return changes, mistakes


def _parse_value(key: str, text: str) -> PolicyValue | None:
    if key == "registration":
        return text if text in REGISTRATION_MODES else None
    if key != "protocol_versions":
        return _plain_integer(text)
    numbers = [_plain_integer(part) for part in text.split(",")]
    return None if None in numbers else tuple(number for number in numbers if number is not None)


def _plain_integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None


def _out_of_bounds(policy: Policy) -> list[str]:
    mistakes = []
    for key in KEYS:
        value = getattr(policy, key)
        if not _is_valid(key, value):
            mistakes.append(f"{key}: {value!r} is not allowed; allowed: {describe_bounds(key)}")
    return mistakes


def _is_valid(key: str, value: object) -> bool:
    if key == "registration":
        return value in REGISTRATION_MODES
    if key == "protocol_versions":
        return (
            isinstance(value, tuple)
            and 1 <= len(value) <= PROTOCOL_VERSIONS_MAX
            and all(type(number) is int and 1 <= number <= 65_535 for number in value)
            and len(set(value)) == len(value)
        )
    return type(value) is int and BOUNDS[key].low <= value <= BOUNDS[key].high


def _contradictions(policy: Policy) -> list[str]:
    """Settings that are each allowed but cannot hold together."""
    rules = (
        ("ttl_s_min", "ttl_s_default"),
        ("ttl_s_default", "ttl_s_max"),
        ("envelope_bytes_max", "pending_bytes_max"),
    )
    mistakes = []
    for smaller, larger in rules:
        low, high = getattr(policy, smaller), getattr(policy, larger)
        if type(low) is int and type(high) is int and low > high:
            mistakes.append(f"{smaller}={low} is above {larger}={high}: change both together")
    return mistakes
