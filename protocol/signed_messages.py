"""What Ed25519 signatures are made over (WIRE, "Signatures are Ed25519 over the plain concatenation below").

Every message starts with its own context and a zero byte, so that a signature for one purpose is worth nothing for
another. A client derives the context from the purpose and never signs one that a server hands it.
"""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from protocol.ids import ID_BYTES, DeviceId, IdentityId, InstanceId
from protocol.limits import CHALLENGE_BYTES, PUBLIC_KEY_BYTES

REGISTER_CONTEXT: Final = "mailboxd.register.v1"
TOKEN_CONTEXT: Final = "mailboxd.token.v1"  # noqa: S105 - a context, not a secret
DEVICE_CONTEXT: Final = "mailboxd.device.v1"
DEVICE_ADD_CONTEXT: Final = "mailboxd.device-add.v1"
DEVICE_REVOKE_CONTEXT: Final = "mailboxd.device-revoke.v1"

# The `purpose` of POST /v1/auth/challenges and the context that its challenge is signed under.
CHALLENGE_CONTEXTS: Final = {
    "token": TOKEN_CONTEXT,
    "device.add": DEVICE_ADD_CONTEXT,
    "device.revoke": DEVICE_REVOKE_CONTEXT,
}


def register_message(instance_id: InstanceId, identity_public_bundle: bytes, device_public_key: bytes) -> bytes:
    """Signed by the new device's key: registration of an identity with its first device."""
    _exactly(device_public_key, PUBLIC_KEY_BYTES, "device_public_key")
    return _message(REGISTER_CONTEXT, instance_id, blake3(identity_public_bundle).digest(), device_public_key)


def token_message(instance_id: InstanceId, device_id: DeviceId, challenge: bytes) -> bytes:
    """Signed by the device that asks for a token."""
    _exactly(device_id, ID_BYTES, "device_id")
    _exactly(challenge, CHALLENGE_BYTES, "challenge")
    return _message(TOKEN_CONTEXT, instance_id, device_id, challenge)


def device_proof_message(instance_id: InstanceId, identity_id: IdentityId, device_public_key: bytes) -> bytes:
    """Signed by a device about to be added: it holds this key and wants to join this identity."""
    _exactly(identity_id, ID_BYTES, "identity_id")
    _exactly(device_public_key, PUBLIC_KEY_BYTES, "device_public_key")
    return _message(DEVICE_CONTEXT, instance_id, identity_id, device_public_key)


def device_add_message(
    instance_id: InstanceId, acting_device_id: DeviceId, challenge: bytes, device_public_key: bytes
) -> bytes:
    """Signed by the device that adds `device_public_key`, which is the new device's key."""
    _exactly(acting_device_id, ID_BYTES, "acting_device_id")
    _exactly(challenge, CHALLENGE_BYTES, "challenge")
    _exactly(device_public_key, PUBLIC_KEY_BYTES, "device_public_key")
    hashed = blake3(device_public_key).digest()
    return _message(DEVICE_ADD_CONTEXT, instance_id, acting_device_id, challenge, hashed)


def device_revoke_message(
    instance_id: InstanceId, acting_device_id: DeviceId, challenge: bytes, target_device_id: DeviceId
) -> bytes:
    """Signed by the device that revokes `target_device_id`."""
    _exactly(acting_device_id, ID_BYTES, "acting_device_id")
    _exactly(challenge, CHALLENGE_BYTES, "challenge")
    _exactly(target_device_id, ID_BYTES, "target_device_id")
    hashed = blake3(target_device_id).digest()
    return _message(DEVICE_REVOKE_CONTEXT, instance_id, acting_device_id, challenge, hashed)


def _message(context: str, instance_id: bytes, *parts: bytes) -> bytes:
    _exactly(instance_id, ID_BYTES, "instance_id")
    return b"".join((context.encode("ascii"), b"\x00", instance_id, *parts))


def _exactly(value: bytes, size: int, name: str) -> None:
    """Fixed widths are what keeps a plain concatenation unambiguous."""
    if len(value) != size:
        raise ValueError(f"{name} is exactly {size} bytes")
