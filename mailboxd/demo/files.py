"""The demo's files as pieces that fit an envelope, and back. Pure but for reading the files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3

ENVELOPE_BYTES_MAX: Final = 65_536  # the largest sealed body
SEAL_BYTES: Final = 48  # what a libsodium sealed box adds
PIECES_WANTED: Final = 24  # small inputs too make enough envelopes for a lost connection in the middle
_HEAD: Final = struct.Struct(">BHI")  # kind, file, part
_ABOUT: Final = 0
_PART: Final = 1
_MARK_BYTES: Final = 1  # padding takes at least this
_DATA_BYTES_MAX: Final = ENVELOPE_BYTES_MAX - SEAL_BYTES - _MARK_BYTES - _HEAD.size
_DATA_BYTES_MIN: Final = 200
_NAME_CHARS_MAX: Final = 255


class Outgoing(NamedTuple):
    """One file to send."""

    name: str
    content: bytes

    @property
    def digest(self) -> str:
        return blake3(self.content).hexdigest()


class Rebuilt(NamedTuple):
    """One file that came out at the other end; `intact` says that its hash is the one that the sender named."""

    name: str
    content: bytes
    intact: bool


def read_files(paths: Sequence[Path]) -> list[Outgoing]:
    """Raises OSError naming the first file that cannot be read, ValueError when there are too many."""
    if len(paths) > 1_000:
        raise ValueError("at most 1,000 files at a time")
    return [Outgoing(path.name[:_NAME_CHARS_MAX], path.read_bytes()) for path in paths]


def piece_bytes(files: Sequence[Outgoing]) -> int:
    """How much of a file goes into one envelope: all that fits, less for small inputs."""
    total = sum(len(file.content) for file in files)
    return min(_DATA_BYTES_MAX, max(_DATA_BYTES_MIN, -(-total // PIECES_WANTED)))


def pieces_of(files: Sequence[Outgoing]) -> Iterator[bytes]:
    """Plaintexts, in order: for each file what it is, then its parts."""
    size = piece_bytes(files)
    for number, file in enumerate(files):
        parts = -(-len(file.content) // size)
        about = {"name": file.name, "size": len(file.content), "parts": parts, "blake3": file.digest}
        yield _HEAD.pack(_ABOUT, number, 0) + json.dumps(about).encode()
        for part in range(parts):
            yield _HEAD.pack(_PART, number, part) + file.content[part * size : (part + 1) * size]


class Rebuilder:
    """Takes pieces in any order and puts the files together again."""

    def __init__(self) -> None:
        self._about: dict[int, dict[str, str | int]] = {}
        self._parts: dict[int, dict[int, bytes]] = {}

    def add(self, piece: bytes) -> None:
        """Raises ValueError for bytes that are no piece."""
        if len(piece) < _HEAD.size:
            raise ValueError("too short for a piece")
        kind, number, part = _HEAD.unpack_from(piece)
        data = piece[_HEAD.size :]
        if kind == _ABOUT:
            self._about[number] = json.loads(data)
        elif kind == _PART:
            self._parts.setdefault(number, {})[part] = data
        else:
            raise ValueError("a piece of no known kind")

    def files(self) -> list[Rebuilt]:
        """What was put together, in the order sent; a file with a hole or other bytes is not `intact`."""
        rebuilt = []
        for number, about in sorted(self._about.items()):
            parts = self._parts.get(number, {})
            content = b"".join(parts[part] for part in sorted(parts))
            whole = len(parts) == about["parts"] and len(content) == about["size"]
            intact = whole and blake3(content).hexdigest() == about["blake3"]
            rebuilt.append(Rebuilt(str(about["name"]), content, intact))
        return rebuilt
