"""The instance policy: every key's default and bounds, contradictions, and that all mistakes are told at once."""

from __future__ import annotations

import pytest

from store.policy_rules import BOUNDS, KEYS, Policy, PolicyError, describe_bounds

# Neighbours that a boundary value needs so that only the bound itself is judged.
COMPANIONS = {
    ("ttl_s_min", "high"): ["ttl_s_default=86400"],
    ("ttl_s_default", "low"): ["ttl_s_min=1"],
    ("ttl_s_default", "high"): ["ttl_s_max=2592000"],
    ("ttl_s_max", "low"): ["ttl_s_default=86400"],
}


def mistakes_of(*assignments: str) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as caught:
        Policy().changed(assignments)
    return caught.value.mistakes


def test_every_key_has_bounds_and_a_default_inside_them() -> None:
    assert set(KEYS) - {"registration", "protocol_versions"} == set(BOUNDS)
    for key, bounds in BOUNDS.items():
        assert bounds.low <= getattr(Policy(), key) <= bounds.high


@pytest.mark.parametrize("key", sorted(BOUNDS))
@pytest.mark.parametrize("end", ["low", "high"])
def test_both_ends_of_every_bound_are_allowed(key: str, end: str) -> None:
    value = getattr(BOUNDS[key], end)
    policy = Policy().changed([f"{key}={value}", *COMPANIONS.get((key, end), [])])
    assert getattr(policy, key) == value


@pytest.mark.parametrize("key", sorted(BOUNDS))
def test_one_past_either_end_is_refused_with_the_key_and_what_is_allowed(key: str) -> None:
    for value in (BOUNDS[key].low - 1, BOUNDS[key].high + 1):
        first = mistakes_of(f"{key}={value}")[0]
        assert first.startswith(f"{key}: ")
        assert describe_bounds(key) in first


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("registration=maybe", "open, invite, closed"),
        ("protocol_versions=", "1..65535"),
        ("protocol_versions=0", "1..65535"),
        ("protocol_versions=65536", "1..65535"),
        ("protocol_versions=1,1", "1..65535"),
        ("protocol_versions=1,x", "1..65535"),
        ("acked_cleanup_s=1.5", "0..3000"),
        ("acked_cleanup_s=", "0..3000"),
        ("acked_cleanup_s=1_000", "0..3000"),
        ("acked_cleanup_s=true", "0..3000"),
        ("acked_cleanup_s=" + "9" * 5_000, "0..3000"),
        ("acked_cleanup", "is not KEY=VALUE"),
        ("acked_cleanup=1", "did you mean acked_cleanup_s?"),
        ("version=7", "there is no such setting"),
    ],
)
def test_a_bad_assignment_is_refused_with_what_would_do(assignment: str, told: str) -> None:
    assert told in mistakes_of(assignment)[0]


def test_a_key_given_twice_is_refused() -> None:
    assert mistakes_of("acked_cleanup_s=1", "acked_cleanup_s=2") == ("acked_cleanup_s: given twice",)


def test_every_mistake_is_told_at_once_and_nothing_is_changed() -> None:
    mistakes = mistakes_of("ttl_s_min=0", "no-equals", "unknown=1", "registration=no", "acked_cleanup_s=3001")
    named = " ".join(mistakes)
    assert all(name in named for name in ("ttl_s_min", "no-equals", "unknown", "registration", "acked_cleanup_s"))
    assert len(mistakes) == 5


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (["ttl_s_min=86400", "ttl_s_default=3600"], "ttl_s_min=86400 is above ttl_s_default=3600"),
        (["ttl_s_max=86400"], "ttl_s_default=604800 is above ttl_s_max=86400"),
        (["envelope_bytes_max=1048576", "pending_bytes_max=65536"], "envelope_bytes_max=1048576 is above"),
    ],
)
def test_settings_that_cannot_hold_together_are_refused(assignments: list[str], told: str) -> None:
    assert told in mistakes_of(*assignments)[0]


def test_several_settings_change_together_and_the_rest_stays() -> None:
    policy = Policy(version=4).changed(["ttl_s_max=86400", "ttl_s_default=86400", "protocol_versions=1,2"])
    assert (policy.ttl_s_max, policy.ttl_s_default, policy.protocol_versions) == (86_400, 86_400, (1, 2))
    assert policy.changed([]) == policy
    assert (policy.version, policy.pending_entries_max) == (4, Policy().pending_entries_max)


def test_a_stored_policy_reads_back_as_it_was() -> None:
    policy = Policy().changed(["protocol_versions=1,9", "registration=invite"])
    assert Policy.from_mapping(policy.to_mapping(), version=policy.version) == policy


def test_a_stored_policy_of_another_release_keeps_defaults_and_ignores_what_it_does_not_know() -> None:
    assert Policy.from_mapping({"acked_cleanup_s": 5, "of_a_newer_release": True}, version=9) == Policy(
        version=9, acked_cleanup_s=5
    )


@pytest.mark.parametrize("value", [True, "600", 1.0, None])
def test_a_stored_value_of_a_wrong_type_is_refused(value: object) -> None:
    with pytest.raises(PolicyError, match="acked_cleanup_s"):
        Policy.from_mapping({"acked_cleanup_s": value}, version=1)


def test_clients_are_told_the_limits_of_the_policy() -> None:
    limits = Policy().changed(["envelope_bytes_max=1024", "ttl_s_min=5"]).wire_limits()
    assert (limits.envelope_bytes_max, limits.ttl_s_min, limits.ttl_s_max) == (1_024, 5, 604_800)
