"""The WebSocket's document is whole: every frame, close code, error code and event, no more and no less."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator

import gateway
from gateway.asyncapi import ANSWERS, CLOSE_CODES, LOST, SUMMARIES, document, from_client
from gateway.asyncapi_schemas import EVENTS, bodies, parts
from protocol.errors import CloseCode, ErrorCode
from protocol.frames import FrameType
from tests.golden.write_asyncapi import ASYNCAPI_FILE, current_asyncapi


def test_the_kept_file_is_the_document() -> None:
    assert ASYNCAPI_FILE.read_text(encoding="utf-8") == current_asyncapi(), "run make golden"


def test_every_schema_in_it_is_json_schema() -> None:
    for schema in (*bodies().values(), *parts().values()):
        Draft7Validator.check_schema(schema)


def test_every_reference_leads_somewhere_and_every_part_is_used() -> None:
    text = current_asyncapi()
    named = set(re.findall(r'"\$ref": "#/([^"]+)"', text))
    for reference in named:
        at: Any = document()
        for step in reference.split("/"):
            at = at[step]
    assert {f"components/schemas/{name}" for name in parts()} <= named


def test_every_frame_type_is_one_message_with_its_number_in_one_operation() -> None:
    made = document()
    assert list(SUMMARIES) == list(bodies()) == list(FrameType)
    assert {message["x-type"]: name for name, message in made["components"]["messages"].items()} == {
        int(kind): kind.name for kind in FrameType
    }
    channel_messages = made["channels"]["session"]["messages"]
    assert list(channel_messages) == [kind.name for kind in FrameType]
    told = [(operation["action"], operation["messages"]) for operation in made["operations"].values()]
    assert told == [
        (
            "receive" if kind in range(1, 8) else "send",
            [{"$ref": f"#/channels/session/messages/{kind.name}"}],
        )
        for kind in FrameType
    ]


def test_answers_come_from_the_server_and_carry_the_same_correlation() -> None:
    messages = document()["components"]["messages"]
    for asked, answer in ANSWERS.items():
        assert from_client(asked)
        assert not from_client(answer)
        assert messages[asked.name].get("correlationId") == messages[answer.name].get("correlationId")


def test_the_close_codes_are_those_of_the_code_and_of_the_protocol_document() -> None:
    codes = {value for name, value in vars(CloseCode).items() if name.isupper()}
    assert set(CLOSE_CODES) == codes | {LOST}
    text = ASYNCAPI_FILE.with_name("protocol.md").read_text(encoding="utf-8")
    table = text.split("| close code |", 1)[1].split("\n\n", 1)[0]
    first_cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {int(code) for cell in first_cells for code in re.findall(r"\d{4}", cell)} == set(CLOSE_CODES)


def test_the_error_codes_are_those_of_the_table() -> None:
    assert parts()["ErrorCode"]["enum"] == [str(code) for code in ErrorCode]


def test_the_events_are_those_that_the_gateway_tells() -> None:
    told: set[str] = set()
    for file in Path(gateway.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("tell", "tell_session"):
                told |= {event for argument in node.args for event in _kinds(argument)}
    assert told == set(EVENTS)


def _kinds(argument: ast.expr) -> Iterator[str]:
    """The kind in `"kind"` or `{"kind": "kind", …}`."""
    values: list[ast.expr] = [argument]
    if isinstance(argument, ast.Dict):
        named = zip(argument.keys, argument.values, strict=True)
        values = [value for key, value in named if isinstance(key, ast.Constant) and key.value == "kind"]
    return (value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str))
