"""`mailboxd listen`: a device of its own that receives what `mailboxd send` sends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from mailbox_client import Account, MailboxClient
from mailboxd.inbox import Inbox
from mailboxd.terminal import CommandError
from mailboxd.transfer import Address, open_sealed

STDOUT: Final = 1


async def register(url: str, state: Path, *, invite: str | None) -> tuple[Account, Address]:
    """This machine's device, made at the first call. Raises ClientError, MailboxError."""
    account = await Account.register(url, state / "device.sqlite", invite=invite)
    return account, Address(account.device_id, account.device_public_key)


async def receive(url: str, state: Path, account: Account, *, into: Path | None, follow: bool) -> int:
    """Receive until one transfer is whole (with `follow`: for ever) and hand it out; returns how many there were.

    A transfer is written to stdout, or to a file named by its id in `into`. What was received is durable here before it
    is acknowledged to the server; after a crash a whole transfer that may not have been handed out comes again.
    """
    inbox = Inbox(state / "inbox")
    received = _hand_out(inbox, into, at_most=None if follow else 1)
    if received and not follow:
        return received
    async with MailboxClient(url, state / "device.sqlite") as client:
        async for delivery in client.messages():
            part = open_sealed(delivery.body, account.stored.device_seed)
            if part is None:
                print("mailboxd: passed over a message that is no part of a file", file=sys.stderr, flush=True)
            else:
                inbox.keep([part])
            await delivery.confirm()
            received += _hand_out(inbox, into, at_most=None if follow else 1)
            if received and not follow:
                break
    return received


def _hand_out(inbox: Inbox, into: Path | None, *, at_most: int | None) -> int:
    whole = inbox.complete()[:at_most]
    for transfer in whole:
        try:
            if into is None:
                size = inbox.write_to(transfer, STDOUT)
            else:
                size = _write_file(inbox, transfer, into / transfer.hex())
        except OSError as error:
            raise CommandError(f"the received file cannot be written: {error.strerror}; it is kept") from None
        inbox.forget(transfer)
        print(f"mailboxd: received {size} bytes, transfer {transfer.hex()}", file=sys.stderr, flush=True)
    return len(whole)


def _write_file(inbox: Inbox, transfer: bytes, path: Path) -> int:
    """Whole or not at all under its name."""
    temporary = path.with_name(f".{path.name}.part")
    output = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        size = inbox.write_to(transfer, output)
        os.fsync(output)
    finally:
        os.close(output)
    temporary.replace(path)
    return size
