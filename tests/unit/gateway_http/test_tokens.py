"""Tokens: what the instance signs it believes, and nothing else."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import AuthService, TokenVerifier
from protocol.errors import ErrorCode, MailboxError
from protocol.ids import DeviceId, InstanceId, to_text
from tests.support.clock import START_MS, FakeClock

INSTANCE = InstanceId(b"i" * 16)
DEVICE = DeviceId(b"d" * 16)
KEY = Ed25519PrivateKey.generate()
OLD_KEY = Ed25519PrivateKey.generate()
VERIFIER = TokenVerifier(INSTANCE, {"new": KEY.public_key(), "old": OLD_KEY.public_key()}, clock_skew_s=30)
NOW_S = START_MS // 1000


def a_service(clock: FakeClock) -> AuthService:
    nothing: Any = None  # issuing asks no database
    return AuthService(nothing, nothing, VERIFIER, INSTANCE, ("new", KEY), clock)


def claims(**changes: Any) -> dict[str, Any]:
    instance = to_text(INSTANCE)
    good = {"iss": instance, "aud": instance, "sub": to_text(DEVICE), "iat": NOW_S, "exp": NOW_S + 900}
    return {name: value for name, value in (good | changes).items() if value is not None}


def signed(payload: dict[str, Any], key: Ed25519PrivateKey = KEY, **headers: Any) -> str:
    return jwt.encode(payload, key, algorithm="EdDSA", headers={"kid": "new", **headers})


def verdict(token: str, now_ms: int = START_MS) -> ErrorCode | None:
    try:
        VERIFIER.verify(token, now_ms)
    except MailboxError as error:
        return error.code
    return None


def test_an_issued_token_names_its_device_for_15_minutes() -> None:
    clock = FakeClock()
    issued = a_service(clock).issue(DEVICE)
    assert (issued.expires_in_s, issued.expires_at_ms) == (900, START_MS + 900_000)
    found = VERIFIER.verify(issued.token, clock.wall_ms())
    assert (found.device, found.kid) == (DEVICE, "new")
    assert found.expires_at_ms == issued.expires_at_ms
    assert found.reauth_before_ms == issued.reauth_before_ms == issued.expires_at_ms - 60_000


def test_a_token_ends_at_its_expiry_and_not_a_moment_later() -> None:
    token = signed(claims())
    assert verdict(token, START_MS + 899_999) is None
    assert verdict(token, START_MS + 900_000) is ErrorCode.TOKEN_EXPIRED


def test_another_gateways_clock_may_be_ahead_by_the_skew_and_no_more() -> None:
    assert verdict(signed(claims(iat=NOW_S + 30, exp=NOW_S + 900))) is None
    assert verdict(signed(claims(iat=NOW_S + 31, exp=NOW_S + 900))) is ErrorCode.UNAUTHENTICATED


def test_a_token_by_the_previous_key_is_good_until_that_is_retired() -> None:
    token = signed(claims(), OLD_KEY, kid="old")
    assert verdict(token) is None
    with pytest.raises(MailboxError):
        TokenVerifier(INSTANCE, {"new": KEY.public_key()}).verify(token, START_MS)


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": None},
        {"aud": None},
        {"sub": None},
        {"iat": None},
        {"exp": None},
        {"iss": to_text(b"x" * 16)},
        {"aud": to_text(b"x" * 16)},
        {"aud": [to_text(INSTANCE)]},
        {"aud": [to_text(INSTANCE), "another"]},
        {"sub": to_text(bytes(16))},
        {"sub": to_text(DEVICE) + "="},
        {"sub": "short"},
        {"sub": ""},
        {"exp": str(NOW_S + 900)},
        {"exp": NOW_S + 0.5},
        {"exp": True},
        {"exp": NOW_S},
        {"exp": NOW_S + 901},
        {"exp": 2**70},
        {"iat": "now"},
        {"iat": -1},
        {"iat": True},
    ],
)
def test_every_claim_is_checked(changes: dict[str, Any]) -> None:
    payload = claims(**changes)
    token = raw_token({"alg": "EdDSA", "kid": "new", "typ": "JWT"}, payload)
    assert verdict(token) is ErrorCode.UNAUTHENTICATED


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def raw_token(header: dict[str, Any], payload: Any, key: Ed25519PrivateKey = KEY) -> str:
    """Signed by hand, so that any header and payload can be given."""
    text = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(payload).encode())}"
    return f"{text}.{b64(key.sign(text.encode()))}"


def test_a_token_by_hand_with_the_right_header_is_good() -> None:
    assert verdict(raw_token({"alg": "EdDSA", "kid": "new", "typ": "JWT"}, claims())) is None


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none", "kid": "new", "typ": "JWT"},
        {"alg": "None", "kid": "new", "typ": "JWT"},
        {"alg": "HS256", "kid": "new", "typ": "JWT"},
        {"alg": "ES256", "kid": "new", "typ": "JWT"},
        {"alg": "EdDSA", "kid": "unknown", "typ": "JWT"},
        {"alg": "EdDSA", "kid": "old", "typ": "JWT"},
        {"alg": "EdDSA", "kid": 1, "typ": "JWT"},
        {"alg": "EdDSA", "kid": ["new"], "typ": "JWT"},
        {"alg": "EdDSA", "typ": "JWT"},
        {"alg": "EdDSA", "kid": "new"},
        {"alg": "EdDSA", "kid": "new", "typ": "JWT", "crit": ["exp"]},
        {"alg": "EdDSA", "kid": "new", "typ": "JWT", "b64": False},
        {"alg": "EdDSA", "kid": "new", "typ": "JWT", "jwk": {"kty": "OKP"}},
        {"alg": "EdDSA", "kid": "new", "typ": "at+jwt"},
        {},
        [],
    ],
)
def test_no_header_but_the_instances_own_is_believed(header: Any) -> None:
    assert verdict(raw_token(header, claims())) is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize("algorithm", ["HS256", "HS512"])
def test_the_public_key_is_no_shared_secret(algorithm: str) -> None:
    public = KEY.public_key()
    for secret in (public.public_bytes_raw(), public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)):
        token = jwt.encode(claims(), secret.ljust(64, b"\0"), algorithm=algorithm, headers={"kid": "new"})
        assert verdict(token) is ErrorCode.UNAUTHENTICATED


def test_an_unsigned_and_a_foreign_token_are_refused() -> None:
    unsigned = jwt.encode(claims(), None, algorithm="none", headers={"kid": "new"})
    foreign = signed(claims(), Ed25519PrivateKey.generate())
    for token in (unsigned, unsigned + b64(b"\0" * 64), foreign):
        assert verdict(token) is ErrorCode.UNAUTHENTICATED


def test_every_changed_character_breaks_the_token() -> None:
    token = signed(claims())
    signature_end = len(token) - 1  # of its last character four bits are padding, which may differ
    for at in range(signature_end):
        if token[at] == ".":
            continue
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        assert verdict(changed) is ErrorCode.UNAUTHENTICATED, at


@pytest.mark.parametrize(
    "token", ["", ".", "..", "a.b", "a.b.c.d", "a.b.c", "é.b.c", "a" * 5_000, "a b.c.d", "null.null.null"]
)
def test_what_is_no_token_is_unauthenticated(token: str) -> None:
    assert verdict(token) is ErrorCode.UNAUTHENTICATED


@given(st.text(max_size=80))
def test_no_text_raises_anything_else(text: str) -> None:
    assert verdict(text) is ErrorCode.UNAUTHENTICATED


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=80))
def test_no_three_parts_raise_anything_else(header: bytes, payload: bytes, signature: bytes) -> None:
    assert verdict(f"{b64(header)}.{b64(payload)}.{b64(signature)}") is ErrorCode.UNAUTHENTICATED


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_a_signed_payload_that_is_no_map_of_claims_is_refused(payload: Any) -> None:
    token = raw_token({"alg": "EdDSA", "kid": "new", "typ": "JWT"}, payload)
    assert verdict(token) is ErrorCode.UNAUTHENTICATED
