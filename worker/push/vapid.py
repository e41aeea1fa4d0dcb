"""Who we are to a push service: VAPID, RFC 8292. One P-256 key for the life of the instance, a token per service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocol.ids import to_text

TOKEN_SECONDS: Final = 12 * 3600  # RFC 8292, section 2: at most 24 h
_RENEW_SECONDS: Final = 6 * 3600
_ORIGINS_MAX: Final = 1_000


class Vapid:
    """Signs for any number of push services and remembers the tokens of the most recent ones."""

    def __init__(
        self, private_key: ec.EllipticCurvePrivateKey, *, contact: str | None, wall_seconds: Callable[[], float]
    ) -> None:
        """`contact`: a mailto: or https: URL; some push services refuse to serve without one."""
        self._key = private_key
        self._contact = contact
        self._wall_seconds = wall_seconds
        self._tokens: dict[str, tuple[float, str]] = {}
        self.public_key = to_text(private_key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))

    def authorization(self, origin: str) -> str:
        """The value of the Authorization header for a push service, named by its origin."""
        now = self._wall_seconds()
        signed_at, token = self._tokens.get(origin, (0.0, ""))
        if not token or not now - _RENEW_SECONDS < signed_at <= now:
            claims: dict[str, str | int] = {"aud": origin, "exp": int(now) + TOKEN_SECONDS}
            if self._contact is not None:
                claims["sub"] = self._contact
            token = jwt.encode(claims, self._key, algorithm="ES256")
            if len(self._tokens) >= _ORIGINS_MAX:
                del self._tokens[next(iter(self._tokens))]
            self._tokens[origin] = (now, token)
        return f"vapid t={token}, k={self.public_key}"
