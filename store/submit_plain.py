"""The usual batch of submit, in which nothing repeats and nothing is refused: to the columns of `submit_plain_v1`, and
back to answers. What is anything else goes through `submit_columns`.

The function says only what the caller cannot know: the time, each mailbox's head, whose mailbox it is. Positions follow
from these by the rule that the function used itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from protocol.admission import SEND
from protocol.errors import MailboxError
from protocol.fingerprint import InstanceSecret, echo_mid
from protocol.frames import Entry, SendResult
from protocol.ids import ZERO_ID, DeviceId, MessageId
from protocol.limits import ECHO_BACKLOG_MAX, ECHO_TTL_S
from store.policy_rules import Policy
from store.records import StoredEntry, SubmitRequest, Submitted
from store.submit_columns import OPERATIONS, Keys, Row, policy_rule

_NO_ECHO = MessageId(ZERO_ID)


class PlainColumns(NamedTuple):
    """The arguments of one call, and what of them its answer points into. Ordinals count from 1, as in SQL."""

    arguments: tuple[Any, ...]
    devices: list[DeviceId]
    actor_of: list[int]  # by request: ordinal of the acting device
    mailbox_of: list[int]  # by envelope: ordinal of the mailbox
    lifetimes: list[int]  # by envelope, seconds
    echo_mailbox_of: list[int]  # by request; 0 without an echo
    echo_mids: list[MessageId]  # by request


def plain_columns_of(
    requests: Sequence[SubmitRequest], keys: Sequence[Keys], secret: InstanceSecret, policy: Policy, *, wait: bool
) -> PlainColumns | None:
    """The call of submit_plain_v1 for these requests, in this order; None where one of them needs judging."""
    devices = sorted(
        {envelope.to for request in requests for envelope in request.envelopes}
        | {request.actor for request in requests if request.echo}
    )
    ordinal = {device: n for n, device in enumerate(devices, 1)}
    entries, sizes, echoes = [0] * len(devices), [0] * len(devices), [0] * len(devices)
    actors: dict[DeviceId, int] = {}
    sessions: dict[int, int] = {}
    scopes: list[bytes] = []
    rule = policy_rule(secret, policy)
    r_actor, r_operation, r_session, r_first, r_count, r_cmid = [], [], [], [], [], []
    r_echo_mailbox, r_echo_rank = [], []
    r_echo_mid: list[MessageId] = []
    e_request, e_mailbox, e_rank, e_pv, e_ttl, e_pad, e_body = [], [], [], [], [], [], []
    e_mid: list[MessageId] = []
    for r, (request, key) in enumerate(zip(requests, keys, strict=True), 1):
        if request.rate_refused_ms is not None or request.pair_refused:
            return None
        actor = actors.setdefault(request.actor, len(actors) + 1)
        if actor > len(scopes):
            scopes.append(key.scope)
        r_actor.append(actor)
        r_operation.append(OPERATIONS[request.operation])
        r_session.append(sessions.setdefault(request.session, len(sessions) + 1))
        r_first.append(len(e_mid) + 1)
        r_count.append(len(request.envelopes))
        r_cmid.append(request.cmid)
        for envelope in request.envelopes:
            if rule.refusal_by_policy(envelope) is not None:
                return None
            to, mid, pv, body, ttl_s, pad = envelope
            mailbox = ordinal[to]
            entries[mailbox - 1] += 1
            sizes[mailbox - 1] += len(body)
            e_request.append(r)
            e_mailbox.append(mailbox)
            e_rank.append(entries[mailbox - 1] + echoes[mailbox - 1])
            e_mid.append(mid)
            e_pv.append(pv)
            e_ttl.append(rule.lifetime_s(ttl_s))
            e_pad.append(pad)
            e_body.append(body)
        if request.echo and request.cmid is not None:
            mailbox = ordinal[request.actor]
            echoes[mailbox - 1] += 1
            r_echo_mailbox.append(mailbox)
            r_echo_rank.append(entries[mailbox - 1] + echoes[mailbox - 1])
            r_echo_mid.append(echo_mid(secret.key, request.actor, request.cmid))
        else:
            r_echo_mailbox.append(0)
            r_echo_rank.append(0)
            r_echo_mid.append(_NO_ECHO)
    if len({(key.scope, key.key) for key in keys}) < len(keys) or len(set(zip(e_mailbox, e_mid, strict=True))) < len(
        e_mid
    ):
        return None
    single = len(e_mid) == len(requests)
    echoing = any(r_echo_mailbox)
    arguments = (
        devices,
        entries,
        sizes,
        echoes if echoing else [],
        list(actors),
        scopes,
        r_actor,
        [] if all(request.operation == SEND for request in requests) else r_operation,
        [key.key for key in keys],
        [key.fingerprint for key in keys],
        r_cmid,
        [] if single else r_first,
        [] if single else r_count,
        [] if len(sessions) == len(requests) else r_session,
        r_echo_mailbox if echoing else [],
        r_echo_rank if echoing else [],
        r_echo_mid if echoing else [],
        [] if single else e_request,
        e_mailbox,
        e_rank,
        e_mid,
        e_pv,
        e_ttl,
        e_pad if any(pad is not None for pad in e_pad) else [],
        e_body,
        secret.key_id,
        policy.client_dedup_ttl_s,
        policy.idempotency_ttl_s,
        policy.pending_entries_max,
        policy.pending_bytes_max,
        ECHO_BACKLOG_MAX,
        ECHO_TTL_S,
        wait,
    )
    return PlainColumns(arguments, devices, r_actor, e_mailbox, e_ttl, r_echo_mailbox, r_echo_mid)


def plain_answers_of(
    requests: Sequence[SubmitRequest], columns: PlainColumns, row: Row, epoch: bytes
) -> list[Submitted | MailboxError | None]:
    """One answer a request, in order; None for a deferred one."""
    deferred: Sequence[bool] | None = row["r_deferred"]
    if deferred is not None and all(deferred):
        return [None] * len(requests)
    _, devices, actor_of, mailbox_of, lifetimes, echo_mailbox_of, echo_mids = columns
    now_us, heads = row["now_us"], row["m_head"]
    now_ms = now_us // 1000
    owner_of, identity_of = row["m_identity"], row["a_identity"]
    filling = {devices[m - 1] for m in row["m_filling"]} if row["m_filling"] else ()
    answers: list[Submitted | MailboxError | None] = []
    at = 0
    for r, request in enumerate(requests):
        first, at = at, at + len(request.envelopes)
        if deferred is not None and deferred[r]:
            answers.append(None)
            continue
        results, stored = [], []
        identity = identity_of[actor_of[r] - 1]
        for i, (to, mid, pv, body, _, pad) in enumerate(request.envelopes, first):
            m = mailbox_of[i] - 1
            previous = heads[m]
            heads[m] = position = now_us if now_us > previous else previous + 1
            expires_ms = now_ms + lifetimes[i] * 1000
            results.append(SendResult(mid, now_ms, expires_ms))
            cmid = request.cmid if owner_of[m] == identity else None
            entry = Entry(mid, pv, body, now_ms, expires_ms, pad, cmid)
            stored.append(StoredEntry(to, position, previous, entry, len(body)))
        if echo_mailbox_of[r]:
            m = echo_mailbox_of[r] - 1
            previous = heads[m]
            heads[m] = position = now_us if now_us > previous else previous + 1
            echo = Entry(echo_mids[r], 0, None, now_ms, now_ms + ECHO_TTL_S * 1000, None, request.cmid, True)
            stored.append(StoredEntry(request.actor, position, previous, echo, 0))
        full = tuple({s.device for s in stored if s.device in filling}) if filling else ()
        answers.append(Submitted(False, tuple(results), tuple(stored), epoch, full))
    return answers
