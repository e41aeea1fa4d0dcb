"""Who is asking: tokens signed by the instance, and the challenges that a device signs to get one.

A token is an EdDSA JWT of 15 minutes and proves by itself which device holds it; whether that device may still act is
asked of the database. Nothing here stores a token, and there is no refresh token: a device signs a new challenge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.ids import DeviceId, InstanceId, id_from_text, to_text
from protocol.limits import REAUTH_BEFORE_END_S, TOKEN_TTL_S
from protocol.signed_messages import token_message
from runtime.clock import Clock
from store.auth import Challenge, ChallengeStore, device_key, require_active
from store.postgres import Postgres
from store.proofs import require_signature

TOKEN_CHARS_MAX: Final = 2_048

_ALGORITHM: Final = "EdDSA"
_CLAIMS: Final = ("aud", "exp", "iat", "iss", "sub")
_COMPACT: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)  # PyJWT skips characters that are no base64url
# Stands in for the key of an unknown device, so that its answer takes the same work. Its private half is gone.
_NOBODY: Final = Ed25519PrivateKey.generate().public_key().public_bytes_raw()


class TokenClaims(NamedTuple):
    """A valid token's content. No frame and no request is served past `expires_at_ms`."""

    device: DeviceId
    expires_at_ms: int
    reauth_before_ms: int
    kid: str


class IssuedToken(NamedTuple):
    token: str
    expires_at_ms: int
    expires_in_s: int
    reauth_before_ms: int


class TokenVerifier:
    """Judges tokens by the instance's public keys alone: no database, no state, the same for every gateway."""

    def __init__(self, instance_id: InstanceId, keys: Mapping[str, Ed25519PublicKey], *, clock_skew_s: int = 0) -> None:
        """`keys` by `kid`; `clock_skew_s`: how far another gateway's clock, which dated the token, may be ahead."""
        self._instance = to_text(instance_id)
        self._keys = dict(keys)
        self._clock_skew_s = clock_skew_s

    def verify(self, token: str, now_ms: int) -> TokenClaims:
        """The claims of a token that is valid now.

        Raises MailboxError TOKEN_EXPIRED for one that was valid once, UNAUTHENTICATED for everything else: malformed,
        another algorithm, an unknown or foreign key, another instance, a claim missing or of wrong kind.
        """
        try:
            kid, key = self._key_of(token)
            claims = jwt.decode(
                token,
                key,
                algorithms=[_ALGORITHM],
                audience=self._instance,
                issuer=self._instance,
                # The times are judged below, by the clock that was handed in.
                options={"require": list(_CLAIMS), "verify_exp": False, "verify_iat": False, "verify_nbf": False},
            )
            device = DeviceId(id_from_text(_text(claims["sub"])))
            issued_s, expires_s = _instant(claims["iat"]), _instant(claims["exp"])
        except (jwt.InvalidTokenError, ValueError) as error:
            raise MailboxError(ErrorCode.UNAUTHENTICATED) from error
        now_s = now_ms / 1000
        if claims["aud"] != self._instance or not 0 < expires_s - issued_s <= TOKEN_TTL_S:
            raise MailboxError(ErrorCode.UNAUTHENTICATED)
        if issued_s > now_s + self._clock_skew_s:
            raise MailboxError(
                ErrorCode.UNAUTHENTICATED, "The token is dated in the future; check the server's clocks."
            )
        if expires_s <= now_s:
            raise MailboxError(ErrorCode.TOKEN_EXPIRED)
        return TokenClaims(device, expires_s * 1000, (expires_s - REAUTH_BEFORE_END_S) * 1000, kid)

    def _key_of(self, token: str) -> tuple[str, Ed25519PublicKey]:
        if len(token) > TOKEN_CHARS_MAX or _COMPACT.fullmatch(token) is None:
            raise ValueError("not a compact JWT")
        header = jwt.get_unverified_header(token)
        if header.keys() != {"alg", "kid", "typ"} or header["alg"] != _ALGORITHM or header["typ"] != "JWT":
            raise ValueError("not a header that this instance writes")
        kid = _text(header["kid"])
        if kid not in self._keys:
            raise ValueError("not a key of this instance")
        return kid, self._keys[kid]


class AuthService:
    """Challenges and tokens over the two doors."""

    def __init__(
        self,
        postgres: Postgres,
        challenges: ChallengeStore,
        verifier: TokenVerifier,
        instance_id: InstanceId,
        signing: tuple[str, Ed25519PrivateKey],
        clock: Clock,
    ) -> None:
        self._postgres = postgres
        self._challenges = challenges
        self._verifier = verifier
        self._instance_id = instance_id
        self._kid, self._signing_key = signing
        self._clock = clock

    def verify(self, token: str) -> TokenClaims:
        """As `TokenVerifier.verify`, now."""
        return self._verifier.verify(token, self._clock.wall_ms())

    def require_fresh(self, claims: TokenClaims) -> None:
        """Raises TOKEN_EXPIRED when claims that were good once are so no longer."""
        if claims.expires_at_ms <= self._clock.wall_ms():
            raise MailboxError(ErrorCode.TOKEN_EXPIRED)

    async def require_active(self, device: DeviceId) -> None:
        """Raises DEVICE_REVOKED or FORBIDDEN when the device may not act any more, whatever its token says."""
        await require_active(self._postgres, device)

    async def challenge(self, device: DeviceId, purpose: str, *, lifetime_s: int) -> Challenge:
        """A challenge for a known or unknown device; the two cannot be told apart."""
        return await self._challenges.issue(device, purpose, lifetime_s=lifetime_s)

    async def token(self, device: DeviceId, challenge: bytes, signature: bytes) -> IssuedToken:
        """A token for the device that signed its challenge; the challenge is used up with it.

        Raises UNAUTHENTICATED (unknown device, signature or challenge: not told apart), DEVICE_REVOKED, FORBIDDEN.
        """
        found = await device_key(self._postgres, device)
        message = token_message(self._instance_id, device, challenge)
        require_signature(found.public_key if found is not None else _NOBODY, message, signature)
        if found is None:
            raise MailboxError(ErrorCode.UNAUTHENTICATED, outcome=Outcome.NOT_COMMITTED)
        await self._challenges.consume(self._postgres, challenge, device, "token")
        if not found.active:
            raise MailboxError(ErrorCode.DEVICE_REVOKED, outcome=Outcome.NOT_COMMITTED)
        if not found.identity_active:
            raise MailboxError(ErrorCode.FORBIDDEN, outcome=Outcome.NOT_COMMITTED)
        return self.issue(device)

    def issue(self, device: DeviceId) -> IssuedToken:
        """Sign a token. The caller has made sure of the device."""
        issued_s = self._clock.wall_ms() // 1000
        expires_s = issued_s + TOKEN_TTL_S
        instance = to_text(self._instance_id)
        claims: dict[str, Any] = {
            "iss": instance,
            "aud": instance,
            "sub": to_text(device),
            "iat": issued_s,
            "exp": expires_s,
        }
        token = jwt.encode(claims, self._signing_key, algorithm=_ALGORITHM, headers={"kid": self._kid})
        return IssuedToken(token, expires_s * 1000, TOKEN_TTL_S, (expires_s - REAUTH_BEFORE_END_S) * 1000)


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError("not a text")
    return value


def _instant(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**40:
        raise ValueError("not a time in whole seconds")
    return value
