"""Which exceptions are expected ends of a command, and what each says. Everything else is a bug."""

from __future__ import annotations

import sys

from mailboxd.terminal import EXIT_CONFIG, EXIT_FAILED, CommandError


def explain(error: BaseException) -> CommandError | None:
    """The lines and exit code for an expected failure; None for a bug.

    Modules are looked up, not imported: a class that was never loaded cannot have been raised.
    """
    if isinstance(error, CommandError):
        return error
    if isinstance(error, OSError) and error.filename is not None:
        return CommandError(f"{error.filename}: {error.strerror}")  # a path that somebody named or a disk that is full
    if isinstance(error, BaseExceptionGroup):
        told = [explain(part) for part in error.exceptions]
        if any(part is None for part in told):
            return None
        known = [part for part in told if part is not None]
        return CommandError(*(line for part in known for line in part.lines), exit_code=known[0].exit_code)
    if _is(error, "runtime.config", "ConfigError"):
        return CommandError(*getattr(error, "problems", ()), exit_code=EXIT_CONFIG)
    if _is(error, "runtime.key_rings", "KeyringError") or _is(error, "runtime.faultpoints", "FaultPointError"):
        return CommandError(str(error), exit_code=EXIT_CONFIG)
    if _is(error, "worker.push.credentials", "CredentialsUnusable"):
        return CommandError(str(error), exit_code=EXIT_CONFIG)
    if _is(error, "mailboxd.unprivileged", "EmbeddedError") or _is(error, "migrations.runner", "MigrationError"):
        return CommandError(*str(error).splitlines())
    if _is(error, "mailbox_client.errors", "NoAnswer") and "Certificate" in str(error):
        return CommandError(f"{error}; it is not trusted here, SSL_CERT_FILE names one to trust")
    if _is(error, "mailbox_client.errors", "NoAnswer"):
        return CommandError(f"{error}; `mailboxd up` starts one on this machine, --url names another")
    if _is(error, "mailbox_client.errors", "ClientError") or _is(error, "mailbox_client.local_store", "StoreFault"):
        return CommandError(str(error))
    if _is(error, "store.policy_rules", "PolicyError"):
        return CommandError(*getattr(error, "mistakes", ()), exit_code=EXIT_CONFIG)
    if _is(error, "protocol.errors", "MailboxError"):
        return CommandError(str(getattr(error, "message", error)), exit_code=EXIT_FAILED)
    return None


def _is(error: BaseException, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(error, kind)
