"""The instance's secret keys: one file beside the database, never in it (seed 001, section 2.1).

`Keyring` is a value of plain bytes; only `Keyring.load`, `create` and `update` touch the disk.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from runtime.key_rings import KEY_BYTES, KEY_ID_MAX, KeyringError, Purpose, Ring, StoredKey, p256_key

KEYRING_FILE: Final = "keyring.json"
FORMAT: Final = 1
FILE_BYTES_MAX: Final = 256 * 1024


class SecretKey(NamedTuple):
    """A symmetric key with the id that sealed values and records carry."""

    key_id: int
    key: bytes

    def __repr__(self) -> str:
        return f"SecretKey(key_id={self.key_id})"


@dataclass(frozen=True, slots=True, repr=False)
class Keyring:
    """All rings of an instance. A value: the changing methods return a new one."""

    rings: Mapping[Purpose, Ring]

    @property
    def fingerprint(self) -> SecretKey:
        return _symmetric(self.rings[Purpose.FINGERPRINT].current_key)

    @property
    def fingerprint_old(self) -> SecretKey | None:
        """The other secret under which records are looked up too, while one takes over from the other."""
        return next(map(_symmetric, self.rings[Purpose.FINGERPRINT].others), None)

    @property
    def cursor_ring(self) -> tuple[int, Mapping[int, bytes]]:
        """The id that seals and every key that opens."""
        return _symmetric_ring(self.rings[Purpose.CURSOR])

    @property
    def token_signing(self) -> tuple[str, Ed25519PrivateKey]:
        """The `kid` and key that sign new tokens."""
        key = self.rings[Purpose.TOKEN].current_key
        return key.key_id, key.signing_key

    @property
    def token_keys(self) -> Mapping[str, Ed25519PublicKey]:
        """Every key whose tokens are accepted, by `kid`; the current one is among them."""
        return MappingProxyType({key.key_id: key.signing_key.public_key() for key in self.rings[Purpose.TOKEN].keys})

    @property
    def push_token_keys(self) -> tuple[int, Mapping[int, bytes]]:
        """The id that seals and every key that opens."""
        return _symmetric_ring(self.rings[Purpose.PUSH_TOKEN])

    @property
    def vapid_key(self) -> ec.EllipticCurvePrivateKey:
        """Signs what the worker tells web push services (RFC 8292)."""
        return p256_key(self.rings[Purpose.VAPID].current_key.secret)

    @property
    def vapid_public_key(self) -> bytes:
        """Its public half, as browsers take it to bind a subscription to it: an uncompressed point, 65 bytes."""
        return self.vapid_key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    @property
    def log_key(self) -> bytes:
        return self.rings[Purpose.LOG].current_key.secret

    def stage(self, purpose: Purpose, now_ms: int) -> Keyring:
        return self._with(self.rings[purpose].stage(now_ms))

    def rotate(self, purpose: Purpose, now_ms: int) -> Keyring:
        return self._with(self.rings[purpose].rotate(now_ms))

    def retire(self, purpose: Purpose, key_id: str) -> Keyring:
        return self._with(self.rings[purpose].retire(key_id))

    def _with(self, ring: Ring) -> Keyring:
        return Keyring(MappingProxyType({**self.rings, ring.purpose: ring}))

    @classmethod
    def generate(cls, now_ms: int) -> Self:
        """A keyring with one fresh key for every purpose."""
        return cls(MappingProxyType({purpose: Ring.generate(purpose, now_ms) for purpose in Purpose}))

    @classmethod
    def load(cls, secrets_dir: Path) -> Self:
        """Read the file; KeyringError when it is missing, readable by others, or not a keyring."""
        path = secrets_dir / KEYRING_FILE
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                if mode & 0o077:
                    raise KeyringError(f"{path} has mode {mode:04o}: others can read it; run chmod 600 {path}")
                text = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            raise KeyringError(f"{path} is missing; run mailboxd init, or restore the file from its backup") from None
        except OSError as error:
            raise KeyringError(f"{path} cannot be read: {error.strerror}") from None
        try:
            return cls(_rings_from_json(text))
        except ValueError as error:
            raise KeyringError(f"{path} is not a keyring: {error}; restore the file from its backup") from None


def create(secrets_dir: Path, now_ms: int) -> Keyring:
    """Write a fresh keyring. KeyringError when one is there: without its keys an instance loses cursors and tokens."""
    try:
        secrets_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise KeyringError(f"{secrets_dir} cannot be created: {error.strerror}") from None
    keyring = Keyring.generate(now_ms)
    with _locked(secrets_dir):
        if (secrets_dir / KEYRING_FILE).exists():
            raise KeyringError(f"{secrets_dir / KEYRING_FILE} is there already and is never replaced")
        _write(secrets_dir, keyring)
    return keyring


def update(secrets_dir: Path, change: Callable[[Keyring], Keyring]) -> Keyring:
    """Read, change and write the keyring; two at once wait for each other. On an error the file is as before."""
    with _locked(secrets_dir):
        keyring = change(Keyring.load(secrets_dir))
        _write(secrets_dir, keyring)
    return keyring


@contextmanager
def _locked(secrets_dir: Path) -> Iterator[None]:
    try:
        directory = os.open(secrets_dir, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise KeyringError(f"{secrets_dir} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _write(secrets_dir: Path, keyring: Keyring) -> None:
    """Replace the file whole: after a crash there is the old one or the new one, on disk."""
    path = secrets_dir / KEYRING_FILE
    temporary = secrets_dir / f".{KEYRING_FILE}.{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(_to_json(keyring))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(secrets_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise KeyringError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _symmetric(key: StoredKey) -> SecretKey:
    return SecretKey(int(key.key_id), key.secret)


def _symmetric_ring(ring: Ring) -> tuple[int, Mapping[int, bytes]]:
    return int(ring.current), MappingProxyType({int(key.key_id): key.secret for key in ring.keys})


def _to_json(keyring: Keyring) -> str:
    document: dict[str, Any] = {"format": FORMAT}
    for purpose, ring in keyring.rings.items():
        keys = [
            {
                "id": key.key_id,
                "secret": base64.urlsafe_b64encode(key.secret).decode(),
                "created_at_ms": key.created_at_ms,
                "superseded_at_ms": key.superseded_at_ms,
            }
            for key in ring.keys
        ]
        document[purpose.value] = {"current": ring.current, "keys": keys}
    return json.dumps(document, indent=1) + "\n"


def _rings_from_json(text: bytes) -> Mapping[Purpose, Ring]:
    """Raise ValueError that names the part and never its value."""
    if len(text) > FILE_BYTES_MAX:
        raise ValueError("it is too large")
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    return MappingProxyType({purpose: _ring_from_json(purpose, document.get(purpose.value)) for purpose in Purpose})


def _ring_from_json(purpose: Purpose, value: Any) -> Ring:
    if not isinstance(value, dict) or not isinstance(value.get("keys"), list):
        raise ValueError(f"{purpose}: the ring is missing or malformed")
    keys = tuple(_key_from_json(purpose, key) for key in value["keys"])
    ids = [key.key_id for key in keys]
    if len(set(ids)) != len(ids) or not 1 <= len(ids) <= purpose.keys_max:
        raise ValueError(f"{purpose}: it must hold 1 to {purpose.keys_max} keys of different ids")
    if value.get("current") not in ids:
        raise ValueError(f"{purpose}: the current key is not among its keys")
    return Ring(purpose, value["current"], keys)


def _key_from_json(purpose: Purpose, value: Any) -> StoredKey:
    try:
        key_id, created_at_ms, superseded_at_ms = value["id"], value["created_at_ms"], value["superseded_at_ms"]
        secret = base64.b64decode(value["secret"], altchars=b"-_", validate=True)
    except (TypeError, KeyError, ValueError, binascii.Error):
        raise ValueError(f"{purpose}: a key is malformed") from None
    if not isinstance(key_id, str) or not (_is_kid(key_id) if purpose is Purpose.TOKEN else _is_key_id(key_id)):
        raise ValueError(f"{purpose}: a key has a bad id")
    if len(secret) != KEY_BYTES:
        raise ValueError(f"{purpose}: key {key_id} has a bad length")
    if type(created_at_ms) is not int or type(superseded_at_ms) not in (int, type(None)):
        raise ValueError(f"{purpose}: key {key_id} has a bad time")
    return StoredKey(key_id=key_id, secret=secret, created_at_ms=created_at_ms, superseded_at_ms=superseded_at_ms)


def _is_kid(text: str) -> bool:
    return 1 <= len(text) <= 64 and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def _is_key_id(text: str) -> bool:
    return text in {str(number) for number in range(1, KEY_ID_MAX + 1)}
