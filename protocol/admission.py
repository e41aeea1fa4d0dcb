"""The rule of submit: what is accepted, what is refused, and what a SEND leaves behind (seed 000, 3.1; WIRE, "SEND").

This is the rule as a reader can check it: one request at a time, against a plain model of the mailboxes. The database
function `submit_batch_v1` does the same for hundreds at once; property tests hold it to `fold`.

The order of checks: replay; the acting device; the sender's rate; then, per envelope, unknown recipient, protocol
version, TTL, size, message id conflict, pair rate, mailbox full; last the sender's echo backlog. `code` is the first
check that any envelope fails, `at` names all envelopes that fail that check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from protocol.errors import ErrorCode
from protocol.fingerprint import canonical_submit
from protocol.frames import SendEnvelope, SendResult
from protocol.ids import ClientMessageId, DeviceId, IdentityId, MessageId
from protocol.limits import ECHO_BACKLOG_MAX, ECHO_TTL_S

SEND: Final = "send"  # the cmid path, one scope for both doors
SEND_BY_KEY: Final = "send.key"  # the Idempotency-Key path


class AdmissionPolicy(Protocol):
    """What of the instance policy this rule reads."""

    @property
    def protocol_versions(self) -> Sequence[int]: ...
    @property
    def envelope_bytes_max(self) -> int: ...
    @property
    def pending_entries_max(self) -> int: ...
    @property
    def pending_bytes_max(self) -> int: ...
    @property
    def ttl_s_min(self) -> int: ...
    @property
    def ttl_s_default(self) -> int: ...
    @property
    def ttl_s_max(self) -> int: ...
    @property
    def idempotency_ttl_s(self) -> int: ...
    @property
    def client_dedup_ttl_s(self) -> int: ...


class AdmissionRequest(Protocol):
    """One SEND, well-formed, with what its door already knows. `store.records.SubmitRequest` is one."""

    @property
    def actor(self) -> DeviceId: ...
    @property
    def operation(self) -> str: ...
    @property
    def key(self) -> bytes: ...
    @property
    def cmid(self) -> ClientMessageId | None: ...
    @property
    def envelopes(self) -> tuple[SendEnvelope, ...]: ...
    @property
    def echo(self) -> bool: ...
    @property
    def rate_refused_ms(self) -> int | None: ...
    @property
    def pair_refused(self) -> tuple[int, ...]: ...


class Held(NamedTuple):
    """An entry in a mailbox. `acked` ones are on their way out: they still answer a repeat, and are in no quota."""

    mid: MessageId
    position: int
    pv: int
    body: bytes
    pad: int | None
    cmid: ClientMessageId | None
    accepted_at: int
    expires_at: int
    echo: bool = False
    acked: bool = False


@dataclass(slots=True)
class MailboxModel:
    """One device's mailbox."""

    identity: IdentityId
    active: bool = True
    head: int = 0
    entries: dict[MessageId, Held] = field(default_factory=dict)

    def present(self, mid: MessageId, now_ms: int) -> Held | None:
        """The entry under `mid`; an expired one counts as absent, cleaned up or not."""
        held = self.entries.get(mid)
        return held if held is not None and held.expires_at > now_ms else None

    def pending(self, now_ms: int, *, echo: bool = False) -> list[Held]:
        """Un-acked and unexpired, in order: envelopes, or with `echo` the echo entries."""
        waiting = [h for h in self.entries.values() if h.echo == echo and not h.acked and h.expires_at > now_ms]
        return sorted(waiting, key=lambda held: held.position)


class Record(NamedTuple):
    """A finished request: no claim without its effect, no effect of a cmid or key without its record."""

    canonical: bytes
    results: tuple[SendResult, ...]
    expires_at: int


RecordKey = tuple[DeviceId, str, bytes]  # actor, operation, cmid or Idempotency-Key


@dataclass(slots=True)
class AdmissionState:
    """Everything that the rule looks at."""

    mailboxes: dict[DeviceId, MailboxModel] = field(default_factory=dict)
    records: dict[RecordKey, Record] = field(default_factory=dict)

    def ack(self, device: DeviceId, mids: Iterable[MessageId]) -> None:
        """ACK: the device's own entries stop counting. Unknown, foreign, expired and repeated ids change nothing."""
        mailbox = self.mailboxes.get(device)
        if mailbox is None:
            return
        for mid in mids:
            if (held := mailbox.entries.get(mid)) is not None:
                mailbox.entries[mid] = held._replace(acked=True)

    def clean_up(self, now_ms: int) -> None:
        """What is acked or expired may go at any time. Only a repeat past this moment can notice."""
        for mailbox in self.mailboxes.values():
            mailbox.entries = {m: h for m, h in mailbox.entries.items() if not h.acked and h.expires_at > now_ms}


class Stored(NamedTuple):
    """One entry that a SEND puts into a mailbox; `previous_head` is the mailbox's head before it."""

    device: DeviceId
    previous_head: int
    held: Held


class Accepted(NamedTuple):
    """`replay`: the answer of the first time, nothing changes. `duplicate`: no new envelope was stored."""

    duplicate: bool
    results: tuple[SendResult, ...]
    stored: tuple[Stored, ...]
    replay: bool = False


class Refused(NamedTuple):
    """Nothing was recorded. `at` is None where the refusal is not about single envelopes."""

    code: ErrorCode
    at: tuple[int, ...] | None = None


Verdict = Accepted | Refused

# Where an envelope may fail, in the order in which it is looked at. RATE_LIMITED is the per-pair rate here.
ENVELOPE_CHECKS: Final = (
    ErrorCode.UNKNOWN_RECIPIENT,
    ErrorCode.UNSUPPORTED_PROTOCOL_VERSION,
    ErrorCode.TTL_OUT_OF_RANGE,
    ErrorCode.ENVELOPE_TOO_LARGE,
    ErrorCode.MESSAGE_ID_CONFLICT,
    ErrorCode.RATE_LIMITED,
    ErrorCode.MAILBOX_FULL,
)


class Rule:
    """The rule under one policy. `echo_mid` is the instance's keyed hash, see `protocol.fingerprint`."""

    def __init__(self, policy: AdmissionPolicy, echo_mid: Callable[[DeviceId, ClientMessageId], MessageId]) -> None:
        self._policy = policy
        self._echo_mid = echo_mid

    def fold(self, state: AdmissionState, requests: Iterable[AdmissionRequest], now_us: int) -> list[Verdict]:
        """Judge the requests in order, each against what the ones before it left behind. Changes `state`."""
        verdicts: list[Verdict] = []
        for request in requests:
            verdict = self.admit(state, request, now_us)
            self.apply(state, request, verdict, now_us)
            verdicts.append(verdict)
        return verdicts

    def admit(self, state: AdmissionState, request: AdmissionRequest, now_us: int) -> Verdict:
        """The verdict on one request at `now_us` (database time, µs since 1970). Does not change `state`."""
        now_ms = now_us // 1000
        record = state.records.get((request.actor, request.operation, request.key))
        if record is not None and record.expires_at > now_ms:
            if record.canonical != canonical_submit(request.envelopes, request.echo):
                return Refused(ErrorCode.IDEMPOTENCY_KEY_REUSED)
            return Accepted(True, record.results, (), replay=True)
        actor = state.mailboxes.get(request.actor)
        if actor is None or not actor.active:
            return Refused(ErrorCode.DEVICE_REVOKED)
        if request.rate_refused_ms is not None:
            return Refused(ErrorCode.RATE_LIMITED)
        failures = self._failures(state, request, now_ms)
        for code in ENVELOPE_CHECKS:
            if at := tuple(index for index, failed in enumerate(failures) if failed is code):
                return Refused(code, at)
        echo = self._echo(actor, request, now_ms)
        if echo is not None and len(actor.pending(now_ms, echo=True)) >= ECHO_BACKLOG_MAX:
            return Refused(ErrorCode.ECHO_BACKLOG_FULL)
        return self._accept(state, request, echo, now_us)

    def _failures(self, state: AdmissionState, request: AdmissionRequest, now_ms: int) -> list[ErrorCode | None]:
        """For each envelope the first check that it fails. Room is demanded in the order of the envelopes."""
        demand: dict[DeviceId, tuple[int, int]] = {}
        failures: list[ErrorCode | None] = []
        for index, envelope in enumerate(request.envelopes):
            mailbox = state.mailboxes.get(envelope.to)
            if mailbox is None or not mailbox.active:
                failures.append(ErrorCode.UNKNOWN_RECIPIENT)  # a revoked device is an unknown recipient
                continue
            if (code := self.refusal_by_policy(envelope)) is not None:
                failures.append(code)
                continue
            held = mailbox.present(envelope.mid, now_ms)
            if held is not None:
                failures.append(None if _same(held, envelope) else ErrorCode.MESSAGE_ID_CONFLICT)
                continue  # what is already stored counts in no quota and no rate
            if index in request.pair_refused:
                failures.append(ErrorCode.RATE_LIMITED)
                continue
            if envelope.to not in demand:
                waiting = mailbox.pending(now_ms)
                demand[envelope.to] = (len(waiting), sum(len(held.body) for held in waiting))
            entries, size = demand[envelope.to]
            entries, size = demand[envelope.to] = entries + 1, size + len(envelope.body)
            full = entries > self._policy.pending_entries_max or size > self._policy.pending_bytes_max
            failures.append(ErrorCode.MAILBOX_FULL if full else None)
        return failures

    def refusal_by_policy(self, envelope: SendEnvelope) -> ErrorCode | None:
        """The first check that the envelope fails whatever any mailbox holds."""
        if envelope.pv not in self._policy.protocol_versions:
            return ErrorCode.UNSUPPORTED_PROTOCOL_VERSION
        if envelope.ttl_s is not None and envelope.ttl_s < self._policy.ttl_s_min:
            return ErrorCode.TTL_OUT_OF_RANGE
        if len(envelope.body) > self._policy.envelope_bytes_max:
            return ErrorCode.ENVELOPE_TOO_LARGE
        return None

    def lifetime_s(self, asked: int | None) -> int:
        """min(asked, the policy's maximum); the default where nothing was asked (seed 000, 3.4)."""
        return min(self._policy.ttl_s_default if asked is None else asked, self._policy.ttl_s_max)

    def _echo(self, actor: MailboxModel, request: AdmissionRequest, now_ms: int) -> MessageId | None:
        """The mid of the echo entry to store; None where none is wanted or it is already there."""
        if not request.echo or request.cmid is None:
            return None
        mid = self._echo_mid(request.actor, request.cmid)
        return mid if actor.present(mid, now_ms) is None else None

    def _accept(
        self, state: AdmissionState, request: AdmissionRequest, echo: MessageId | None, now_us: int
    ) -> Accepted:
        """Positions: a hybrid clock per mailbox, above its head and no lower than the clock in µs."""
        now_ms = now_us // 1000
        heads = {device: mailbox.head for device, mailbox in state.mailboxes.items()}
        own_identity = state.mailboxes[request.actor].identity
        stored: list[Stored] = []
        results: list[SendResult] = []

        def store(device: DeviceId, held: Held) -> None:
            position = max(now_us, heads[device] + 1)
            stored.append(Stored(device, heads[device], held._replace(position=position)))
            heads[device] = position

        for to, mid, pv, body, ttl_s, pad in request.envelopes:
            held = state.mailboxes[to].present(mid, now_ms)
            if held is None:
                # Only the sender's own identity learns which of its sends an entry came from.
                cmid = request.cmid if state.mailboxes[to].identity == own_identity else None
                held = Held(mid, 0, pv, body, pad, cmid, now_ms, now_ms + self.lifetime_s(ttl_s) * 1000)
                store(to, held)
            results.append(SendResult(mid, held.accepted_at, held.expires_at))
        duplicate = not stored
        if echo is not None:
            expires_at = now_ms + ECHO_TTL_S * 1000
            store(request.actor, Held(echo, 0, 0, b"", None, request.cmid, now_ms, expires_at, echo=True))
        return Accepted(duplicate, tuple(results), tuple(stored))

    def apply(self, state: AdmissionState, request: AdmissionRequest, verdict: Verdict, now_us: int) -> None:
        """What an accepted request leaves behind. A refusal and a replay leave nothing."""
        if isinstance(verdict, Refused) or verdict.replay:
            return
        for device, _, held in verdict.stored:
            mailbox = state.mailboxes[device]
            mailbox.entries[held.mid] = held
            mailbox.head = held.position
        window_s = self._policy.client_dedup_ttl_s if request.operation == SEND else self._policy.idempotency_ttl_s
        state.records[request.actor, request.operation, request.key] = Record(
            canonical_submit(request.envelopes, request.echo), verdict.results, now_us // 1000 + window_s * 1000
        )


def _same(held: Held, envelope: SendEnvelope) -> bool:
    """One message id may carry one envelope only: same body, version and padding class."""
    return not held.echo and (held.body, held.pv, held.pad) == (envelope.body, envelope.pv, envelope.pad)
