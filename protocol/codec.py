"""Frames to bytes and back, for both sides. The work is in `client_frames`, `server_frames` and `packing`."""

from __future__ import annotations

from protocol.client_frames import decode_client_frame, encode_client_frame
from protocol.server_frames import (
    decode_server_frame,
    encode_ack_result,
    encode_entry,
    encode_error,
    encode_mailbox_batch,
    encode_send_ack,
    encode_server_frame,
)

__all__ = [
    "decode_client_frame",
    "decode_server_frame",
    "encode_ack_result",
    "encode_client_frame",
    "encode_entry",
    "encode_error",
    "encode_mailbox_batch",
    "encode_send_ack",
    "encode_server_frame",
]
