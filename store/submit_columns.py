"""The pure part of submit: requests to the columns of `submit_batch_v1`, and its rows back to answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from protocol.admission import SEND, SEND_BY_KEY, Rule
from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.fingerprint import (
    InstanceSecret,
    actor_scope_hash,
    echo_mid,
    idempotency_key_hash,
    submit_fingerprint,
)
from protocol.frames import Entry, SendResult
from protocol.ids import ZERO_ID, DeviceId, MessageId
from protocol.limits import ECHO_BACKLOG_MAX, ECHO_TTL_S
from store.policy_rules import Policy
from store.records import StoredEntry, SubmitRequest, Submitted

# Verdicts of submit_batch_v1; the function declares the same.
ACCEPTED: Final = 0
REPLAYED: Final = 1
KEY_REUSED: Final = 2
DEFERRED: Final = 3
ACTOR_REVOKED: Final = 4
RATE_LIMITED: Final = 5
PAIR_LIMITED: Final = 15

REFUSALS: Final[dict[int, ErrorCode]] = {
    KEY_REUSED: ErrorCode.IDEMPOTENCY_KEY_REUSED,
    ACTOR_REVOKED: ErrorCode.DEVICE_REVOKED,
    RATE_LIMITED: ErrorCode.RATE_LIMITED,
    10: ErrorCode.UNKNOWN_RECIPIENT,
    11: ErrorCode.UNSUPPORTED_PROTOCOL_VERSION,
    12: ErrorCode.TTL_OUT_OF_RANGE,
    13: ErrorCode.ENVELOPE_TOO_LARGE,
    14: ErrorCode.MESSAGE_ID_CONFLICT,
    PAIR_LIMITED: ErrorCode.RATE_LIMITED,
    16: ErrorCode.MAILBOX_FULL,
    17: ErrorCode.ECHO_BACKLOG_FULL,
}
WITHOUT_STATE: Final = {REFUSALS[code]: code for code in (11, 12, 13)}
PER_ENVELOPE_FROM: Final = 10
OPERATIONS: Final = {SEND: 1, SEND_BY_KEY: 2}  # stored: a number never changes its meaning

# The same hint for every refusal: it says neither which limit nor whether the recipient is there (seed 000, section 4).
MAILBOX_FULL_RETRY_MS: Final = 60_000
ECHO_BACKLOG_RETRY_MS: Final = 1_000
_INT4_MAX: Final = 2**31 - 1


class Keys(NamedTuple):
    """The keyed hashes under which a request is recorded."""

    scope: bytes
    key: bytes
    fingerprint: bytes


class Columns(NamedTuple):
    """The arguments of one call, and what of them its answer points into."""

    arguments: tuple[Any, ...]
    devices: list[DeviceId]
    echo_mids: list[MessageId]  # by request; all zero where there is no echo


class Row(Protocol):
    """One row of submit_batch_v1, by column name."""

    def __getitem__(self, column: str, /) -> Any: ...


def keys_of(secret: InstanceSecret, request: SubmitRequest) -> Keys:
    return Keys(
        actor_scope_hash(secret.key, request.actor),
        idempotency_key_hash(secret.key, request.operation, request.key),
        submit_fingerprint(secret.key, request.envelopes, request.echo),
    )


def policy_rule(secret: InstanceSecret, policy: Policy) -> Rule:
    """The rule as far as it can be told without looking at a mailbox."""
    return Rule(policy, lambda device, cmid: echo_mid(secret.key, device, cmid))


def columns_of(
    requests: Sequence[SubmitRequest],
    keys: Sequence[Keys],
    old_keys: Sequence[Keys],
    secret: InstanceSecret,
    policy: Policy,
    *,
    wait: bool,
) -> Columns:
    """The call of submit_batch_v1 for these requests, in this order."""
    devices = sorted(
        {envelope.to for request in requests for envelope in request.envelopes}
        | {request.actor for request in requests if request.echo}
    )
    ordinal = {device: n for n, device in enumerate(devices, 1)}
    actors: dict[DeviceId, int] = {}
    last_key: dict[tuple[bytes, bytes, int], int] = {}
    last_session: dict[int, int] = {}
    last_mid: dict[tuple[int, bytes], int] = {}
    rule = policy_rule(secret, policy)
    r_actor, r_operation, r_previous_key, r_previous_session = [], [], [], []
    r_first, r_count, r_rate_refused, r_echo_mailbox, r_cmid = [], [], [], [], []
    r_echo_mid: list[MessageId] = []
    e_request, e_mailbox, e_pv, e_ttl, e_pad, e_body, e_refused, e_previous = [], [], [], [], [], [], [], []
    e_mid: list[bytes] = []
    for r, (request, key) in enumerate(zip(requests, keys, strict=True), 1):
        operation = OPERATIONS[request.operation]
        identity = (key.scope, key.key, operation)
        r_actor.append(actors.setdefault(request.actor, len(actors) + 1))
        r_operation.append(operation)
        r_previous_key.append(last_key.get(identity, 0))
        r_previous_session.append(last_session.get(request.session, 0))
        last_key[identity] = last_session[request.session] = r
        r_first.append(len(e_mid) + 1)
        r_count.append(len(request.envelopes))
        r_rate_refused.append(request.rate_refused_ms is not None)
        if request.echo and request.cmid is not None:
            r_echo_mailbox.append(ordinal[request.actor])
            r_echo_mid.append(echo_mid(secret.key, request.actor, request.cmid))
        else:
            r_echo_mailbox.append(0)
            r_echo_mid.append(MessageId(ZERO_ID))
        r_cmid.append(request.cmid)
        for index, envelope in enumerate(request.envelopes):
            mailbox = ordinal[envelope.to]
            refusal = rule.refusal_by_policy(envelope)
            if refusal is not None:
                refused = WITHOUT_STATE[refusal]
            else:
                refused = PAIR_LIMITED if index in request.pair_refused else 0
            e_request.append(r)
            e_mailbox.append(mailbox)
            e_mid.append(envelope.mid)
            e_pv.append(envelope.pv if 0 <= envelope.pv <= _INT4_MAX else -1)
            e_ttl.append(max(0, rule.lifetime_s(envelope.ttl_s)))  # below the minimum it is refused, whatever it is
            e_pad.append(envelope.pad)
            e_body.append(envelope.body)
            e_refused.append(refused)
            e_previous.append(last_mid.get((mailbox, envelope.mid), 0))
            last_mid[mailbox, envelope.mid] = len(e_mid)
    arguments = (
        devices,
        list(actors),
        r_actor,
        r_operation,
        [key.scope for key in keys],
        [key.key for key in keys],
        [key.fingerprint for key in keys],
        [key.scope for key in old_keys],
        [key.key for key in old_keys],
        [key.fingerprint for key in old_keys],
        _unless_empty(r_previous_key),
        _unless_empty(r_previous_session),
        r_first,
        r_count,
        _unless_empty(r_rate_refused),
        _unless_empty(r_echo_mailbox),
        r_echo_mid if any(r_echo_mailbox) else [],
        r_cmid,
        e_request,
        e_mailbox,
        e_mid,
        e_pv,
        e_ttl,
        e_pad if any(pad is not None for pad in e_pad) else [],
        e_body,
        _unless_empty(e_refused),
        _unless_empty(e_previous),
        secret.key_id,
        policy.client_dedup_ttl_s,
        policy.idempotency_ttl_s,
        policy.pending_entries_max,
        policy.pending_bytes_max,
        ECHO_BACKLOG_MAX,
        ECHO_TTL_S,
        wait,
    )
    return Columns(arguments, devices, r_echo_mid)


def _unless_empty(values: list[Any]) -> list[Any]:
    """The values, or none at all where all are 0 or false: the function reads what is left out as that."""
    return values if any(values) else []


def answers_of(
    requests: Sequence[SubmitRequest], columns: Columns, row: Row, epoch: bytes
) -> list[Submitted | MailboxError | None]:
    """One answer a request, in order; None for a deferred one."""
    devices, echo_mids = columns.devices, columns.echo_mids
    codes, duplicates = row["r_code"], row["r_duplicate"]
    echo_positions, echo_previous = row["r_echo_position"], row["r_echo_previous"]
    e_codes, positions, previous, own = row["e_code"], row["e_position"], row["e_previous"], row["e_own"]
    accepted_ms, expires_ms = row["e_accepted_ms"], row["e_expires_ms"]
    now_ms = row["now_ms"]
    filling = {devices[m - 1] for m in row["m_filling"]} if row["m_filling"] else ()
    answers: list[Submitted | MailboxError | None] = []
    at = 0
    for r, request in enumerate(requests):
        code = codes[r]
        first, at = at, at + len(request.envelopes)
        if code == DEFERRED:
            answers.append(None)
            continue
        if code > REPLAYED:
            answers.append(_refusal(request, code, e_codes[first:at]))
            continue
        results, stored = [], []
        for i, (to, mid, pv, body, _, pad) in enumerate(request.envelopes, first):
            results.append(SendResult(mid, accepted_ms[i], expires_ms[i]))
            if positions[i] and code == ACCEPTED:
                cmid = request.cmid if own[i] else None
                entry = Entry(mid, pv, body, accepted_ms[i], expires_ms[i], pad, cmid)
                stored.append(StoredEntry(to, positions[i], previous[i], entry, len(body)))
        if echo_positions[r]:
            echo = Entry(echo_mids[r], 0, None, now_ms, now_ms + ECHO_TTL_S * 1000, None, request.cmid, True)
            stored.append(StoredEntry(request.actor, echo_positions[r], echo_previous[r], echo, 0))
        full = tuple({s.device for s in stored if s.device in filling}) if filling else ()
        answers.append(Submitted(code == REPLAYED or duplicates[r], tuple(results), tuple(stored), epoch, full))
    return answers


def _refusal(request: SubmitRequest, code: int, e_codes: Sequence[int]) -> MailboxError:
    at = [i for i, e_code in enumerate(e_codes) if e_code == code] if code >= PER_ENVELOPE_FROM else None
    retry_after_ms = None
    match REFUSALS[code]:
        case ErrorCode.MAILBOX_FULL:
            retry_after_ms = MAILBOX_FULL_RETRY_MS
        case ErrorCode.ECHO_BACKLOG_FULL:
            retry_after_ms, at = ECHO_BACKLOG_RETRY_MS, None
        case ErrorCode.RATE_LIMITED:
            retry_after_ms = request.pair_retry_after_ms if code == PAIR_LIMITED else request.rate_refused_ms
        case _:
            pass
    return MailboxError(REFUSALS[code], at=at, retry_after_ms=retry_after_ms, outcome=Outcome.NOT_COMMITTED)
