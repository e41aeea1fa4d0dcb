"""Values that are planted to be looked for afterwards, in every spelling that a log or a table could give them."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Find(NamedTuple):
    """A canary of this kind was seen at this place."""

    kind: str
    place: str


@dataclass
class Canaries:
    """Planted values by kind. A value is bytes, or a text that is sent as it is."""

    needles: dict[str, dict[bytes, None]] = field(default_factory=dict)

    def plant(self, kind: str, value: bytes | str) -> None:
        """Have `value` looked for under this kind. Short values would be found by chance and are refused."""
        spellings = set(_of_bytes(value)) if isinstance(value, bytes) else {value.encode()}
        assert all(len(spelling) >= 8 for spelling in spellings), f"a canary of kind {kind} is too short"
        self.needles.setdefault(kind, {}).update(dict.fromkeys(spellings))

    def find_in(self, place: str, data: bytes) -> set[Find]:
        """Which kinds occur in `data`; letters of hex digits count in either case."""
        lowered = data.lower()
        return {
            Find(kind, place)
            for kind, needles in self.needles.items()
            if any(needle in data or needle.lower() in lowered for needle in needles)
        }

    def find_in_all(self, places: Mapping[str, bytes]) -> set[Find]:
        return {find for place, data in places.items() for find in self.find_in(place, data)}


def _of_bytes(value: bytes) -> Iterable[bytes]:
    yield value
    yield value.hex().encode()
    yield base64.urlsafe_b64encode(value).rstrip(b"=")
    yield base64.b64encode(value).rstrip(b"=")
    yield repr(value)[2:-1].encode()
    if len(value) == 16:
        yield str(uuid.UUID(bytes=value)).encode()
