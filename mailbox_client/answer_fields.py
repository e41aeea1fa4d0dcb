"""One field of an answer's map, of exactly the type that the contract gives it, or ServerNotUnderstood."""

from __future__ import annotations

from typing import Any, NoReturn

from mailbox_client.errors import ServerNotUnderstood
from protocol.ids import is_id

Answer = dict[str, Any]


def wrong(name: str) -> NoReturn:
    raise ServerNotUnderstood(f"{name} is not as the contract says")


def read_int(answer: Answer, name: str) -> int:
    value = answer.get(name)
    return value if type(value) is int else wrong(name)


def read_str(answer: Answer, name: str) -> str:
    value = answer.get(name)
    return value if type(value) is str else wrong(name)


def read_bytes(answer: Answer, name: str) -> bytes:
    value = answer.get(name)
    return value if type(value) is bytes else wrong(name)


def read_bool(answer: Answer, name: str) -> bool:
    value = answer.get(name)
    return value if type(value) is bool else wrong(name)


def read_id(answer: Answer, name: str) -> bytes:
    value = answer.get(name)
    return value if type(value) is bytes and is_id(value) else wrong(name)


def read_map(answer: Answer, name: str) -> Answer:
    value = answer.get(name)
    return value if type(value) is dict else wrong(name)


def read_list(answer: Answer, name: str, kind: type[Any]) -> list[Any]:
    values = answer.get(name)
    if type(values) is not tuple or not all(type(value) is kind for value in values):
        wrong(name)
    return list(values)


def read_maps(answer: Answer, name: str) -> list[Answer]:
    return read_list(answer, name, dict)
