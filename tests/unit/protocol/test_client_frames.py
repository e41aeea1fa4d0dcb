"""What clients send: read strictly, unknown things passed over, policy left to the instance."""

from __future__ import annotations

import os
import timeit
from typing import Any

import pytest

from protocol.codec import decode_client_frame, encode_client_frame
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import Ack, Defer, Hello, Ping, PullMailbox, Reauth, Send, SendEnvelope
from protocol.packing import pack

ID, OTHER = b"i" * 16, b"o" * 16
ENVELOPE = {"to": ID, "mid": OTHER, "pv": 1, "body": b"sealed"}


def send(*envelopes: dict[str, Any], **fields: Any) -> bytes:
    return pack((2, {"cmid": ID, "envelopes": list(envelopes or (ENVELOPE,)), **fields}))


def refused(data: bytes, *, hello_seen: bool = True) -> ErrorCode:
    with pytest.raises(MailboxError) as caught:
        decode_client_frame(data, hello_seen=hello_seen)
    return caught.value.code


def hello(**fields: Any) -> Hello:
    frame = decode_client_frame(pack((1, {"token": "token", **fields})), hello_seen=False)
    assert isinstance(frame, Hello)
    return frame


def test_a_send_asks_for_an_echo_unless_it_says_otherwise() -> None:
    assert decode_client_frame(send()) == Send(ID, (SendEnvelope(ID, OTHER, 1, b"sealed"),), echo=True)  # type: ignore[arg-type]
    frame = decode_client_frame(send(echo=False))
    assert isinstance(frame, Send)
    assert frame.echo is False


def test_unknown_keys_are_ignored_at_every_place() -> None:
    unknown = {"later": {"nested": [1, 2.5, None, "text", b"bytes"]}, "more": 1}
    assert decode_client_frame(send({**ENVELOPE, **unknown}, **unknown)) == decode_client_frame(send())
    assert decode_client_frame(pack((3, {"ref": 1, "mids": [ID], **unknown}))) == Ack(1, (ID,))  # type: ignore[arg-type]
    assert decode_client_frame(pack((4, {"ref": 1, **unknown}))) == PullMailbox(1)
    assert decode_client_frame(pack((5, {"mids": [ID], **unknown}))) == Defer((ID,))  # type: ignore[arg-type]
    assert decode_client_frame(pack((6, {"token": "t", **unknown}))) == Reauth("t")
    assert decode_client_frame(pack((7, {"t": 1, **unknown}))) == Ping(1)
    assert hello(**unknown) == Hello("token")


def test_an_unknown_type_is_unsupported_and_a_server_type_is_unknown_here() -> None:
    for kind in (0, -1, 8, 65, 67, 72, 2**63, 2**64 - 1):
        assert refused(pack((kind, {"anything": 1}))) is ErrorCode.UNSUPPORTED_FRAME


def test_an_unknown_type_with_a_body_that_is_no_map_is_malformed() -> None:
    assert refused(pack((99, 1))) is ErrorCode.BAD_FRAME


def test_nothing_but_hello_comes_first_and_hello_comes_once() -> None:
    hello_frame = pack((1, {"token": "token"}))
    for other in (send(), pack((3, {"ref": 1, "mids": [ID]})), pack((7, {"t": 1})), pack((99, {}))):
        assert refused(other, hello_seen=False) is ErrorCode.BAD_FRAME
    assert refused(hello_frame) is ErrorCode.BAD_FRAME


def test_windows_are_capped_and_default() -> None:
    assert hello()[2:4] == (256, 1_048_576)
    assert hello(window_entries=2**40, window_bytes=2**63)[2:4] == (1_024, 8_388_608)
    assert hello(window_entries=1, window_bytes=1)[2:4] == (1, 1)


def test_any_integer_pv_and_ttl_is_well_formed_since_policy_refuses_it_later() -> None:
    for number in (-(2**63), -1, 0, 65_536, 2**63 - 1, 2**64 - 1):
        frame = decode_client_frame(send({**ENVELOPE, "pv": number, "ttl_s": number}))
        assert isinstance(frame, Send)
        assert (frame.envelopes[0].pv, frame.envelopes[0].ttl_s) == (number, number)


def test_one_mid_may_go_to_two_devices_and_two_mids_to_one() -> None:
    frame = decode_client_frame(send(ENVELOPE, {**ENVELOPE, "to": OTHER}, {**ENVELOPE, "mid": ID}))
    assert isinstance(frame, Send)
    assert len(frame.envelopes) == 3


def test_an_empty_body_is_an_envelope() -> None:
    frame = decode_client_frame(send({**ENVELOPE, "body": b""}))
    assert isinstance(frame, Send)
    assert frame.envelopes[0].body == b""


@pytest.mark.parametrize("pad", range(13))
def test_pad_gives_the_body_its_exact_size(pad: int) -> None:
    size = 256 * 2**pad
    frame = decode_client_frame(send({**ENVELOPE, "pad": pad, "body": bytes(size)}))
    assert isinstance(frame, Send)
    assert frame.envelopes[0].pad == pad
    assert refused(send({**ENVELOPE, "pad": pad, "body": bytes(size - 1)})) is ErrorCode.BAD_FRAME
    assert refused(send({**ENVELOPE, "pad": pad, "body": bytes(size + 1)})) is ErrorCode.BAD_FRAME


@pytest.mark.parametrize("field", ["to", "mid", "pv", "body"])
def test_each_field_of_an_envelope_is_needed(field: str) -> None:
    assert refused(send({name: value for name, value in ENVELOPE.items() if name != field})) is ErrorCode.BAD_FRAME


def test_nil_never_stands_for_absence() -> None:
    for field in ("cursor", "window_entries", "window_bytes", "instance", "attempt", "client"):
        assert refused(pack((1, {"token": "t", field: None})), hello_seen=False) is ErrorCode.BAD_FRAME
    for field in ("cursor", "limit"):
        assert refused(pack((4, {"ref": 1, field: None}))) is ErrorCode.BAD_FRAME
    for field in ("ttl_s", "pad"):
        assert refused(send({**ENVELOPE, field: None})) is ErrorCode.BAD_FRAME
    assert refused(send(echo=None)) is ErrorCode.BAD_FRAME


def test_an_instance_is_no_id_so_that_all_zero_is_a_value_like_any_other() -> None:
    """WIRE's table of ids (device, identity, message, wake-route) forbids zero; `instance` is a plain bin16."""
    assert hello(instance=bytes(16)).instance == bytes(16)
    for size in (0, 15, 17):
        assert refused(pack((1, {"token": "t", "instance": bytes(size)})), hello_seen=False) is ErrorCode.BAD_FRAME


def test_repeated_ids_in_an_ack_are_fine() -> None:
    assert decode_client_frame(pack((3, {"ref": -5, "mids": [ID] * 100}))) == Ack(-5, (ID,) * 100)  # type: ignore[arg-type]


def test_an_attempt_beyond_signed_64_bits_is_malformed_since_it_is_kept() -> None:
    assert hello(attempt=2**63 - 1).attempt == 2**63 - 1
    assert refused(pack((1, {"token": "t", "attempt": 2**63})), hello_seen=False) is ErrorCode.BAD_FRAME


@pytest.mark.parametrize(
    "t", [None, True, 1, -(2**63), 2**64 - 1, 1.5, "text", b"bytes", (1, (2,)), {"a": (1,)}, "x" * 62]
)
def test_ping_takes_anything_up_to_64_bytes_and_gives_it_back_the_same(t: Any) -> None:
    frame = decode_client_frame(encode_client_frame(Ping(t)))
    assert isinstance(frame, Ping)
    assert frame.t == t
    assert type(frame.t) is type(t)


@pytest.mark.parametrize("t", ["x" * 63, b"x" * 63, list(range(64)), [[[[[0]]]]]])
def test_ping_with_more_than_64_bytes_or_too_deep_is_malformed(t: Any) -> None:
    assert refused(pack((7, {"t": t}))) is ErrorCode.BAD_FRAME


def test_a_small_t_in_a_long_ping_is_fine() -> None:
    assert decode_client_frame(pack((7, {"t": "small", "unknown": "x" * 1_000}))) == Ping("small")


def test_error_messages_never_quote_the_frame() -> None:
    secret = "swordfish"
    for data in (
        pack((1, {"token": secret, "cursor": 5})),
        pack((1, {"token": "t", "client": secret * 20})),
        pack((1, {"token": secret, secret: 1, "attempt": None})),
        pack((1, {"token": [secret]})),
    ):
        with pytest.raises(MailboxError) as caught:
            decode_client_frame(data, hello_seen=False)
        assert secret not in str(caught.value)


def test_reading_a_send_costs_microseconds() -> None:
    """The gateway has about 50 µs of CPU per message for everything; a slip to 20 here would be a bug."""
    data = send({**ENVELOPE, "body": os.urandom(1_024)})
    best = min(timeit.repeat(lambda: decode_client_frame(data), number=2_000, repeat=5)) / 2_000
    assert best < 20e-6


def test_a_key_that_stands_twice_counts_with_its_last_value() -> None:
    assert decode_client_frame(b"\x92\x06\x82\xa5token\xa1a\xa5token\xa1b") == Reauth("b")
