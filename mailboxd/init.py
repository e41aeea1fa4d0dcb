"""`mailboxd init`: the keyring and the instance row. Safe to run again: what is there stays."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from mailboxd.terminal import CommandError
from runtime.keyring import KEYRING_FILE, Keyring, create
from store.instance import ForeignKeyring, Instance, ensure_instance, has_instance
from store.policy_rules import Policy


class Initialised(NamedTuple):
    """What there is now, and what was made for it."""

    instance: Instance
    keyring_created: bool


def public_signing_keys(keyring: Keyring) -> dict[str, bytes]:
    """The public halves of the token keys, as the database holds them."""
    return {kid: key.public_bytes_raw() for kid, key in keyring.token_keys.items()}


async def initialise(dsn: str, secrets_dir: Path, policy: Policy) -> Initialised:
    """Make the keyring where none is, then the instance row with `policy` where none is.

    Raises KeyringError, MailboxError UNAVAILABLE, or CommandError when the database belongs to another keyring. No new
    one ever takes its place: every cursor, token and sealed push token would be lost.
    """
    path = secrets_dir / KEYRING_FILE
    keyring_created = not path.exists()
    if not keyring_created:
        keyring = Keyring.load(secrets_dir)
    elif await has_instance(dsn):
        raise CommandError(
            f"the database holds an instance, and its keyring {path} is missing; restore it from its backup"
        )
    else:
        keyring = create(
            secrets_dir, time.time_ns() // 1_000_000
        )  # before the row: a crash in between leaves no orphan
    try:
        instance = await ensure_instance(dsn, policy=policy, signing_keys=public_signing_keys(keyring))
    except ForeignKeyring:
        raise CommandError(
            f"the database holds an instance that was made with another keyring than {path}; "
            "restore that one from its backup, or use an empty database"
        ) from None
    return Initialised(instance, keyring_created)
