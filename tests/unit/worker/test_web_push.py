"""Web Push: RFC 8291's own vector, a body that says nothing, VAPID that a push service can verify."""

from __future__ import annotations

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocol.ids import from_text
from runtime.key_rings import p256_key
from worker.push import webpush_body
from worker.push.vapid import TOKEN_SECONDS, Vapid


def private_key(text: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(from_text(text), "big"), ec.SECP256R1())


def point(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def test_the_example_of_rfc_8291_section_5() -> None:
    body = webpush_body.seal(
        from_text("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"),
        from_text("BTBZMqHH6r4Tts7J_aSIgg"),
        private_key("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"),
        from_text("DGv6ra1nlYgDCS1FRnbzlw"),
        b"When I grow up, I want to be a watermelon",
    )
    assert body == from_text(
        "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A"
        "_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
    )


def test_the_body_opens_to_one_constant_byte_and_never_looks_the_same() -> None:
    receiver, auth = ec.generate_private_key(ec.SECP256R1()), bytes(range(16))
    bodies = {webpush_body.encrypt(point(receiver), auth) for _ in range(5)}
    assert len(bodies) == 5
    assert {len(body) for body in bodies} == {16 + 4 + 1 + 65 + 1 + 1 + 16}
    assert {opened(body, receiver, auth) for body in bodies} == {b"w\x02"}


def opened(body: bytes, receiver: ec.EllipticCurvePrivateKey, auth: bytes) -> bytes:
    """As a browser does it."""
    salt, sender = body[:16], body[21 : 21 + body[20]]
    shared = receiver.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender))
    secret = hkdf(auth, shared, b"WebPush: info\x00" + point(receiver) + sender, 32)
    key, nonce = (
        hkdf(salt, secret, b"Content-Encoding: aes128gcm\x00", 16),
        hkdf(salt, secret, b"Content-Encoding: nonce\x00", 12),
    )
    return AESGCM(key).decrypt(nonce, body[21 + body[20] :], None)


def hkdf(salt: bytes, secret: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)


def test_a_key_that_is_no_point_of_the_curve_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        webpush_body.encrypt(b"\x04" + bytes(64), bytes(16))


class Clock:
    seconds = 1_800_000_000.0


def vapid(contact: str | None = "mailto:ops@example.org") -> Vapid:
    return Vapid(p256_key(b"v" * 32), contact=contact, wall_seconds=lambda: Clock.seconds)


def parts(header: str) -> tuple[str, str]:
    scheme, _, rest = header.partition(" ")
    assert scheme == "vapid"
    token, key = rest.split(", ")
    return token.removeprefix("t="), key.removeprefix("k=")


def claims(header: str) -> dict[str, object]:
    """Verified as RFC 8292 section 4.2 has it: by the key that comes along."""
    token, key = parts(header)
    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), from_text(key))
    assert jwt.get_unverified_header(token)["alg"] == "ES256"
    decoded: dict[str, object] = jwt.decode(
        token, public, algorithms=["ES256"], audience="https://push.example", options={"verify_exp": False}
    )
    return decoded


def test_the_token_names_the_push_service_its_end_and_the_operator() -> None:
    found = claims(vapid().authorization("https://push.example"))
    assert found == {
        "aud": "https://push.example",
        "exp": int(Clock.seconds) + TOKEN_SECONDS,
        "sub": "mailto:ops@example.org",
    }
    assert "sub" not in claims(vapid(None).authorization("https://push.example"))


def test_a_token_is_used_again_for_hours_and_never_near_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    signer = vapid()
    first = signer.authorization("https://push.example")
    assert signer.authorization("https://push.example") == first
    assert signer.authorization("https://other.example") != first
    monkeypatch.setattr(Clock, "seconds", Clock.seconds + 6 * 3600 + 1)
    later = signer.authorization("https://push.example")
    assert later != first
    monkeypatch.setattr(Clock, "seconds", Clock.seconds - 86_400)  # the host's clock was set back
    assert signer.authorization("https://push.example") != later


def test_the_key_follows_from_the_secret() -> None:
    assert vapid().public_key == vapid().public_key
    for secret in (bytes(32), b"\xff" * 32):
        assert len(point(p256_key(secret))) == 65
