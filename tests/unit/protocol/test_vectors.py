"""The vector files say what the code does, and the code does what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol import client_message_id, ids
from protocol.codec import decode_client_frame, decode_server_frame
from protocol.errors import ErrorCode, MailboxError
from protocol.vectors import generate

VECTORS = Path(generate.__file__).parent


def vectors(name: str) -> Any:
    return json.loads((VECTORS / name).read_text(encoding="utf-8"))


def named(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=case["name"].replace(" ", "-")) for case in cases]


@pytest.mark.parametrize("name", list(generate.FILES))
def test_the_files_are_what_the_script_makes(name: str) -> None:
    assert (VECTORS / name).read_text(encoding="utf-8") == generate.text_of(name), (
        "run python -m protocol.vectors.generate, and mind that clients in other languages rely on these bytes"
    )


def test_the_directory_holds_no_file_that_nobody_makes() -> None:
    assert {path.name for path in VECTORS.glob("*.json")} == {*generate.FILES, "client_message_id.json"}


@pytest.mark.parametrize("case", named(vectors("frames.json")["client"]))
def test_a_client_frame_is_read_as_its_value(case: dict[str, Any]) -> None:
    frame = decode_client_frame(bytes.fromhex(case["bytes"]), hello_seen=case["frame"] != "Hello")
    assert type(frame).__name__ == case["frame"]
    assert generate._plain(frame) == case["value"]


@pytest.mark.parametrize("case", named(vectors("frames.json")["server"]))
def test_a_server_frame_is_read_as_its_value(case: dict[str, Any]) -> None:
    frame = decode_server_frame(bytes.fromhex(case["bytes"]))
    assert type(frame).__name__ == case["frame"]
    assert generate._plain(frame) == case["value"]


@pytest.mark.parametrize("case", named(vectors("frames.json")["malformed_after_hello"]))
def test_a_malformed_frame_is_bad_frame(case: dict[str, Any]) -> None:
    with pytest.raises(MailboxError) as caught:
        decode_client_frame(bytes.fromhex(case["bytes"]))
    assert caught.value.code is ErrorCode.BAD_FRAME


@pytest.mark.parametrize("case", named(vectors("frames.json")["malformed_before_hello"]))
def test_a_malformed_first_frame_is_bad_frame(case: dict[str, Any]) -> None:
    with pytest.raises(MailboxError) as caught:
        decode_client_frame(bytes.fromhex(case["bytes"]), hello_seen=False)
    assert caught.value.code is ErrorCode.BAD_FRAME


@pytest.mark.parametrize("case", vectors("client_message_id.json")["cases"])
def test_seed003_client_message_ids_come_out_as_given(case: dict[str, str]) -> None:
    device, ordinal = bytes.fromhex(case["device_id"]), int(case["ordinal"], 16)
    assert client_message_id.derive(device, ordinal) == bytes.fromhex(case["client_message_id"])  # type: ignore[arg-type]


@pytest.mark.parametrize("case", vectors("ids.json")["valid"])
def test_an_id_and_its_text_form_are_the_same_value(case: dict[str, str]) -> None:
    assert ids.to_text(bytes.fromhex(case["bytes"])) == case["text"]
    assert ids.id_from_text(case["text"]) == bytes.fromhex(case["bytes"])


@pytest.mark.parametrize("case", vectors("ids.json")["invalid"], ids=lambda case: case["why"].replace(" ", "-"))
def test_a_text_that_is_no_id_is_refused(case: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        ids.id_from_text(case["text"])
