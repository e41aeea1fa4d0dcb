"""What `mailboxd listen` has received, on disk: a part totals once it is synced, a transfer once it is whole."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from mailboxd.transfer import Part

KEPT_BYTES_MAX: Final = 4 * 1024**3

_PART: Final = struct.Struct(">IIQI")  # number, total, place in the data file, length


class InboxFull(Exception):
    """No room for another part. Nothing of it was kept; it stays on the server."""


class Inbox:
    """Transfers in one directory, each in two files: the parts' data as they came, and an index of them.

    Data is written and synced before its index entry, so after a crash every indexed part is whole; what came twice is
    kept once. At most `bytes_max` are kept: anybody who knows the address can send parts without end.
    """

    def __init__(self, directory: Path, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._indexes: dict[bytes, dict[int, tuple[int, int, int]]] = {}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._bytes = sum(path.stat().st_size for path in directory.glob("*.data"))

    @property
    def kept_bytes(self) -> int:
        return self._bytes

    def keep(self, parts: list[Part]) -> None:
        """Return once all are durable. Raises InboxFull, OSError."""
        if self._bytes + sum(len(part.data) for part in parts) > self._bytes_max:
            raise InboxFull
        by_transfer: dict[bytes, list[Part]] = {}
        for part in parts:
            by_transfer.setdefault(part.transfer, []).append(part)
        for transfer, its_parts in by_transfer.items():
            self._append(transfer, its_parts)

    def complete(self) -> list[bytes]:
        """The transfers of which every part is here, the oldest first."""
        indexes = sorted(self._directory.glob("*.index"), key=lambda path: path.stat().st_mtime_ns)
        transfers = [bytes.fromhex(path.stem) for path in indexes]
        return [transfer for transfer in transfers if self._is_whole(self._index(transfer))]

    def write_to(self, transfer: bytes, output: int) -> int:
        """Write a whole transfer to an open file, in order; returns its size."""
        size = 0
        with self._data(transfer).open("rb") as data:
            for _, (_, place, length) in sorted(self._index(transfer).items()):
                data.seek(place)
                rest = memoryview(data.read(length))
                size += length
                while rest:
                    rest = rest[os.write(output, rest) :]
        return size

    def drop_incomplete(self) -> int:
        """Forget the transfers of which a part is missing; returns how many there were."""
        whole = set(self.complete())
        broken = {bytes.fromhex(path.stem) for path in self._directory.glob("*.data")} - whole
        for transfer in broken:
            self.forget(transfer)
        return len(broken)

    def forget(self, transfer: bytes) -> None:
        self._indexes.pop(transfer, None)
        if (data := self._data(transfer)).exists():
            self._bytes -= data.stat().st_size
        self._index_file(transfer).unlink(missing_ok=True)
        self._data(transfer).unlink(missing_ok=True)

    def _append(self, transfer: bytes, parts: list[Part]) -> None:
        known = dict(self._index(transfer))
        entries = b""
        with self._data(transfer).open("ab") as data:
            for part in parts:
                if part.number not in known:
                    known[part.number] = (part.total, data.tell(), len(part.data))
                    entries += _PART.pack(part.number, *known[part.number])
                    data.write(part.data)
                    self._bytes += len(part.data)
            data.flush()
            os.fsync(data.fileno())
        with self._index_file(transfer).open("ab") as index:
            index.truncate(index.tell() - index.tell() % _PART.size)  # a crash cut the last entry short
            index.write(entries)
            index.flush()
            os.fsync(index.fileno())
        self._indexes[transfer] = known

    def _index(self, transfer: bytes) -> dict[int, tuple[int, int, int]]:
        """Count, place and length by part number."""
        if transfer not in self._indexes:
            self._indexes[transfer] = self._read_index(transfer)
        return self._indexes[transfer]

    def _read_index(self, transfer: bytes) -> dict[int, tuple[int, int, int]]:
        try:
            entries = self._index_file(transfer).read_bytes()
        except FileNotFoundError:
            return {}
        whole = entries[: len(entries) - len(entries) % _PART.size]
        return {number: (total, place, length) for number, total, place, length in _PART.iter_unpack(whole)}

    @staticmethod
    def _is_whole(index: dict[int, tuple[int, int, int]]) -> bool:
        total = max((total for total, _, _ in index.values()), default=0)
        return total > 0 and len(index) == total

    def _data(self, transfer: bytes) -> Path:
        return self._directory / f"{transfer.hex()}.data"

    def _index_file(self, transfer: bytes) -> Path:
        return self._directory / f"{transfer.hex()}.index"
