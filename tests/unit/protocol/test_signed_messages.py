"""A signature for one purpose is worth nothing for another."""

from __future__ import annotations

from typing import Any

import pytest
from blake3 import blake3

from protocol import signed_messages

INSTANCE: Any = b"I" * 16
DEVICE: Any = b"D" * 16
TARGET: Any = b"T" * 16
KEY, CHALLENGE = b"k" * 32, b"c" * 32


def test_each_message_is_the_concatenation_that_the_contract_says() -> None:
    assert signed_messages.register_message(INSTANCE, b"bundle", KEY) == (
        b"mailboxd.register.v1\x00" + INSTANCE + blake3(b"bundle").digest() + KEY
    )
    assert signed_messages.token_message(INSTANCE, DEVICE, CHALLENGE) == (
        b"mailboxd.token.v1\x00" + INSTANCE + DEVICE + CHALLENGE
    )
    assert signed_messages.device_proof_message(INSTANCE, DEVICE, KEY) == (
        b"mailboxd.device.v1\x00" + INSTANCE + DEVICE + KEY
    )
    assert signed_messages.device_add_message(INSTANCE, DEVICE, CHALLENGE, KEY) == (
        b"mailboxd.device-add.v1\x00" + INSTANCE + DEVICE + CHALLENGE + blake3(KEY).digest()
    )
    assert signed_messages.device_revoke_message(INSTANCE, DEVICE, CHALLENGE, TARGET) == (
        b"mailboxd.device-revoke.v1\x00" + INSTANCE + DEVICE + CHALLENGE + blake3(TARGET).digest()
    )


def test_no_message_is_the_beginning_of_another() -> None:
    messages = [
        signed_messages.register_message(INSTANCE, b"", KEY),
        signed_messages.token_message(INSTANCE, DEVICE, CHALLENGE),
        signed_messages.device_proof_message(INSTANCE, DEVICE, KEY),
        signed_messages.device_add_message(INSTANCE, DEVICE, CHALLENGE, KEY),
        signed_messages.device_revoke_message(INSTANCE, DEVICE, CHALLENGE, TARGET),
    ]
    for at, message in enumerate(messages):
        assert not any(other.startswith(message) for other in messages[:at] + messages[at + 1 :])


def test_a_field_of_another_width_is_refused_since_it_could_shift_the_rest() -> None:
    with pytest.raises(ValueError, match="device_id"):
        signed_messages.token_message(INSTANCE, DEVICE + b"x", CHALLENGE[1:])
    with pytest.raises(ValueError, match="instance_id"):
        signed_messages.token_message(b"", DEVICE, CHALLENGE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="device_public_key"):
        signed_messages.register_message(INSTANCE, b"bundle", KEY[:-1])


def test_each_purpose_of_a_challenge_has_its_own_context() -> None:
    assert signed_messages.CHALLENGE_CONTEXTS == {
        "token": "mailboxd.token.v1",
        "device.add": "mailboxd.device-add.v1",
        "device.revoke": "mailboxd.device-revoke.v1",
    }
