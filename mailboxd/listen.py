"""`mailboxd listen`: a device of its own that receives what `mailboxd send` sends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from mailbox_client import Account, MailboxClient
from mailboxd.inbox import Inbox, InboxFull
from mailboxd.progress import Progress
from mailboxd.send import tell
from mailboxd.terminal import CommandError
from mailboxd.transfer import Address, Part, open_sealed

STDOUT: Final = 1


async def register(url: str, state: Path, *, invite: str | None) -> tuple[Account, Address]:
    """This machine's device, made at the first call. Raises ClientError, MailboxError."""
    account = await Account.register(url, state / "device.sqlite", invite=invite)
    return account, Address(account.device_id, account.device_public_key)


async def receive(
    url: str,
    state: Path,
    account: Account,
    *,
    into: Path | None,
    follow: bool,
    kept_bytes_max: int,
    drop_incomplete: bool,
) -> int:
    """Receive until one transfer is whole (with `follow`: for ever) and hand it out; returns how many there were.

    A transfer is written to stdout, or to a file named by its id in `into`. What was received is durable here before it
    is acknowledged to the server; after a crash a whole transfer that may not have been handed out comes again.
    Raises CommandError when `kept_bytes_max` bytes of incomplete transfers are here: the rest stays on the server.
    """
    inbox = Inbox(state / "inbox", kept_bytes_max)
    progress = Progress("received")
    if drop_incomplete:
        progress.line(f"dropped {inbox.drop_incomplete()} incomplete transfers")
    at_most = None if follow else 1
    received = _hand_out(inbox, into, progress, at_most=at_most)
    if received and not follow:
        return received
    problem: CommandError | None = None
    async with MailboxClient(url, state / "device.sqlite", on_event=tell(progress)) as client:
        async for delivery in client.messages():
            part = open_sealed(delivery.body, account.stored.device_seed)
            if part is None:
                progress.line("passed over a message that is no part of a file")
            elif (problem := _keep(inbox, part, state, kept_bytes_max)) is not None:
                break  # leave in good order: the client must not take this for a crash on the message
            else:
                progress.moved(len(part.data))
            await delivery.confirm()
            received += _hand_out(inbox, into, progress, at_most=at_most)
            if received and not follow:
                break
    progress.end()
    if problem is not None:
        raise problem
    return received


def _keep(inbox: Inbox, part: Part, state: Path, kept_bytes_max: int) -> CommandError | None:
    """Keep it durably, or say what is in the way."""
    directory = state / "inbox"
    try:
        inbox.keep([part])
    except InboxFull:
        return CommandError(
            f"{directory} holds {inbox.kept_bytes} bytes of incomplete transfers, and {kept_bytes_max} may be kept;"
            " the rest stays on the server",
            "raise the bound with --kept-bytes-max, or drop what is incomplete with --drop-incomplete",
        )
    except OSError as error:
        return CommandError(f"{directory} cannot be written: {error.strerror}; what is not kept stays on the server")
    return None


def _hand_out(inbox: Inbox, into: Path | None, progress: Progress, *, at_most: int | None) -> int:
    whole = inbox.complete()[:at_most]
    for transfer in whole:
        progress.end()
        try:
            if into is None:
                size = inbox.write_to(transfer, STDOUT)
            else:
                size = _write_file(inbox, transfer, into / transfer.hex())
        except OSError as error:
            raise CommandError(f"the received file cannot be written: {error.strerror}; it is kept") from None
        inbox.forget(transfer)
        progress.line(f"received {size} bytes, transfer {transfer.hex()}")
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
