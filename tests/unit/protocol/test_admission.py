"""The rule of submit, one promise a test (seed 000, 3.1 and 4; WIRE, "SEND is atomic" and "Echo")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from protocol.admission import (
    SEND,
    SEND_BY_KEY,
    Accepted,
    AdmissionState,
    Held,
    MailboxModel,
    Refused,
    Rule,
    Verdict,
)
from protocol.errors import ErrorCode
from protocol.fingerprint import echo_mid
from protocol.frames import SendEnvelope
from protocol.limits import ECHO_BACKLOG_MAX, ECHO_TTL_S

NOW_MS = 1_767_225_600_000
HOUR_MS = 3_600_000
KEY = b"k" * 32


def an_id(name: str) -> Any:
    return name.encode().ljust(16, b".")


ALICE, BOB, CAROL, BOBS_OTHER = (an_id(name) for name in ("alice", "bob", "carol", "bob2"))


@dataclass(frozen=True)
class Policy:
    protocol_versions: tuple[int, ...] = (1,)
    envelope_bytes_max: int = 1_000
    pending_entries_max: int = 3
    pending_bytes_max: int = 2_000
    ttl_s_min: int = 60
    ttl_s_default: int = 600
    ttl_s_max: int = 1_200
    idempotency_ttl_s: int = 86_400
    client_dedup_ttl_s: int = 7_200


class Request(NamedTuple):
    envelopes: tuple[SendEnvelope, ...]
    actor: Any = ALICE
    operation: str = SEND
    key: bytes = an_id("cmid")
    cmid: Any = an_id("cmid")
    echo: bool = False
    rate_refused_ms: int | None = None
    pair_refused: tuple[int, ...] = ()


def envelope(to: Any = BOB, mid: str = "m1", **fields: Any) -> SendEnvelope:
    return SendEnvelope(to, an_id(mid), **{"pv": 1, "body": b"sealed", **fields})


def a_send(*envelopes: SendEnvelope, cmid: str = "cmid", **fields: Any) -> Request:
    return Request(envelopes or (envelope(),), key=an_id(cmid), cmid=an_id(cmid), **fields)


class Server:
    """State, rule and clock in one place."""

    def __init__(self, **policy: Any) -> None:
        self.rule = Rule(Policy(**policy), lambda device, cmid: echo_mid(KEY, device, cmid))
        people = {ALICE: "alice", BOB: "bob", BOBS_OTHER: "bob", CAROL: "carol"}
        self.state = AdmissionState({device: MailboxModel(an_id(person)) for device, person in people.items()})
        self.now_ms = NOW_MS

    def submit(self, request: Request) -> Verdict:
        [verdict] = self.rule.fold(self.state, [request], self.now_ms * 1000)
        return verdict

    def accepted(self, request: Request) -> Accepted:
        verdict = self.submit(request)
        assert isinstance(verdict, Accepted)
        return verdict

    def refused(self, request: Request) -> tuple[ErrorCode, tuple[int, ...] | None]:
        before = repr(self.state)
        verdict = self.submit(request)
        assert isinstance(verdict, Refused)
        assert repr(self.state) == before, "a refusal leaves nothing"
        return verdict

    def pending(self, device: Any = BOB) -> list[Held]:
        return self.state.mailboxes[device].pending(self.now_ms)


def test_an_accepted_envelope_is_in_the_mailbox_with_its_times() -> None:
    server = Server()
    verdict = server.accepted(a_send())
    assert verdict.results == ((an_id("m1"), NOW_MS, NOW_MS + 600_000),)
    assert (verdict.duplicate, verdict.replay) == (False, False)
    assert [held.mid for held in server.pending()] == [an_id("m1")]


def test_adr009_3_1_a_repeat_with_the_same_cmid_gets_the_first_answer_and_changes_nothing() -> None:
    server = Server()
    first = server.accepted(a_send())
    server.now_ms += 1_000
    again = server.accepted(a_send())
    assert again == Accepted(True, first.results, (), replay=True)
    assert len(server.pending()) == 1


def test_adr009_3_1_the_same_key_with_another_request_is_refused() -> None:
    server = Server()
    server.accepted(a_send())
    for other in (envelope(body=b"other"), envelope(mid="m2"), envelope(ttl_s=600), envelope(to=CAROL)):
        assert server.refused(a_send(other)) == (ErrorCode.IDEMPOTENCY_KEY_REUSED, None)
    assert server.refused(a_send(echo=True)) == (ErrorCode.IDEMPOTENCY_KEY_REUSED, None)


@pytest.mark.parametrize(("operation", "window_s"), [(SEND, 7_200), (SEND_BY_KEY, 86_400)])
def test_a_record_ends_with_its_window_and_the_envelope_still_answers_its_first_acceptance(
    operation: str, window_s: int
) -> None:
    server = Server(ttl_s_default=100_000, ttl_s_max=100_000)
    request = a_send(operation=operation)
    first = server.accepted(request)
    server.now_ms += window_s * 1000 - 1
    assert server.accepted(request).replay
    server.now_ms += 1
    again = server.accepted(request)
    assert (again.replay, again.duplicate, again.results) == (False, True, first.results)


def test_one_key_under_two_operations_or_by_two_devices_is_two_keys() -> None:
    server = Server()
    server.accepted(a_send())
    assert not server.accepted(a_send(envelope(mid="m2"), operation=SEND_BY_KEY)).replay
    assert not server.accepted(a_send(envelope(mid="m3"), actor=CAROL)).replay


def test_a_replay_comes_before_the_device_status_and_the_rate() -> None:
    server = Server()
    server.accepted(a_send())
    server.state.mailboxes[ALICE].active = False
    assert server.accepted(a_send(rate_refused_ms=5)).replay
    assert server.refused(a_send(cmid="new", rate_refused_ms=5)) == (ErrorCode.DEVICE_REVOKED, None)
    server.state.mailboxes[ALICE].active = True
    assert server.refused(a_send(envelope(to=an_id("nobody")), cmid="new", rate_refused_ms=5)) == (
        ErrorCode.RATE_LIMITED,
        None,
    )


def test_the_code_is_the_earliest_check_and_at_names_all_envelopes_with_it_and_no_others() -> None:
    server = Server(pending_entries_max=1)
    server.accepted(a_send(envelope(mid="there")))
    server.accepted(a_send(envelope(to=CAROL, mid="there"), cmid="c2"))
    failing = [
        envelope(mid="there2"),  # mailbox full
        envelope(to=BOBS_OTHER, mid="pair"),
        envelope(mid="there", body=b"other"),  # conflict
        envelope(to=BOBS_OTHER, mid="big", body=bytes(1_001)),
        envelope(to=BOBS_OTHER, mid="short", ttl_s=59),
        envelope(to=BOBS_OTHER, mid="version", pv=2),
        envelope(to=an_id("nobody")),
    ]
    order = [
        ErrorCode.MAILBOX_FULL,
        ErrorCode.RATE_LIMITED,
        ErrorCode.MESSAGE_ID_CONFLICT,
        ErrorCode.ENVELOPE_TOO_LARGE,
        ErrorCode.TTL_OUT_OF_RANGE,
        ErrorCode.UNSUPPORTED_PROTOCOL_VERSION,
        ErrorCode.UNKNOWN_RECIPIENT,
    ]
    for count in range(1, len(failing) + 1):
        pair_refused = (1,) if count > 1 else ()
        assert server.refused(a_send(*failing[:count], cmid="new", pair_refused=pair_refused)) == (
            order[count - 1],
            (count - 1,),
        )
    assert server.refused(a_send(envelope(pv=2), envelope(), envelope(mid="m2", pv=2), cmid="new")) == (
        ErrorCode.UNSUPPORTED_PROTOCOL_VERSION,
        (0, 2),
    )


def test_an_envelope_that_fails_two_checks_counts_under_the_earlier_one() -> None:
    server = Server()
    both = envelope(pv=2, ttl_s=1, body=bytes(5_000))
    assert server.refused(a_send(both)) == (ErrorCode.UNSUPPORTED_PROTOCOL_VERSION, (0,))
    assert server.refused(a_send(both._replace(pv=1))) == (ErrorCode.TTL_OUT_OF_RANGE, (0,))


def test_a_revoked_device_is_an_unknown_recipient_and_the_rest_goes_through_under_the_same_cmid() -> None:
    server = Server()
    server.state.mailboxes[CAROL].active = False
    assert server.refused(a_send(envelope(to=CAROL), envelope())) == (ErrorCode.UNKNOWN_RECIPIENT, (0,))
    assert not server.accepted(a_send(envelope())).duplicate


def test_adr009_3_4_the_lifetime_is_the_smaller_of_asked_and_allowed() -> None:
    server = Server()
    for mid, ttl_s, lives_s in [("a", None, 600), ("b", 60, 60), ("c", 1_201, 1_200)]:
        [(_, accepted_at, expires_at)] = server.accepted(a_send(envelope(mid=mid, ttl_s=ttl_s), cmid=mid)).results
        assert expires_at - accepted_at == lives_s * 1000
    assert server.refused(a_send(envelope(mid="d", ttl_s=59), cmid="d")) == (ErrorCode.TTL_OUT_OF_RANGE, (0,))
    assert server.refused(a_send(envelope(mid="d", ttl_s=-(2**63)), cmid="d")) == (ErrorCode.TTL_OUT_OF_RANGE, (0,))


def test_adr009_3_1_one_message_id_carries_one_envelope() -> None:
    server = Server()
    first = server.accepted(a_send())
    again = server.accepted(a_send(cmid="other"))
    assert (again.duplicate, again.results, again.stored) == (True, first.results, ())
    for other in (envelope(body=b"x"), envelope(pad=0, body=bytes(256))):
        assert server.refused(a_send(other, cmid="third")) == (ErrorCode.MESSAGE_ID_CONFLICT, (0,))
    assert not server.accepted(a_send(envelope(to=CAROL), cmid="third")).duplicate


def test_another_ttl_is_the_same_envelope_and_keeps_its_first_times() -> None:
    server = Server()
    first = server.accepted(a_send())
    server.now_ms += 1_000
    assert server.accepted(a_send(envelope(ttl_s=60), cmid="other")).results == first.results


def test_an_acked_envelope_answers_until_it_is_deleted_and_an_expired_one_counts_as_absent() -> None:
    server = Server()
    server.accepted(a_send())
    server.state.ack(BOB, [an_id("m1"), an_id("unknown")])
    assert server.accepted(a_send(cmid="other")).duplicate
    assert server.refused(a_send(envelope(body=b"x"), cmid="third")) == (ErrorCode.MESSAGE_ID_CONFLICT, (0,))
    server.now_ms += 600_000
    assert not server.accepted(a_send(envelope(body=b"x"), cmid="third")).duplicate


def test_acking_for_a_device_that_is_not_there_changes_nothing() -> None:
    server = Server()
    server.accepted(a_send())
    server.state.ack(an_id("nobody"), [an_id("m1")])
    server.state.ack(CAROL, [an_id("m1")])
    assert len(server.pending()) == 1


def test_cleanup_only_removes_what_is_acked_or_expired() -> None:
    server = Server()
    server.accepted(a_send(envelope(mid="acked"), envelope(mid="short", ttl_s=60), envelope(mid="stays")))
    server.state.ack(BOB, [an_id("acked")])
    server.now_ms += 60_000
    server.state.clean_up(server.now_ms)
    assert list(server.state.mailboxes[BOB].entries) == [an_id("stays")]


def test_adr009_4_quotas_count_entries_and_bytes_in_the_order_of_the_envelopes() -> None:
    server = Server()
    four = [envelope(mid=f"m{n}", body=b"") for n in range(4)]
    assert server.refused(a_send(*four)) == (ErrorCode.MAILBOX_FULL, (3,))
    sizes = [900, 900, 300]
    assert server.refused(a_send(*[envelope(mid=f"m{n}", body=bytes(size)) for n, size in enumerate(sizes)])) == (
        ErrorCode.MAILBOX_FULL,
        (2,),
    )
    server.accepted(a_send(*four[:3]))
    assert server.refused(a_send(envelope(mid="m9", body=b""), envelope(to=CAROL), cmid="other")) == (
        ErrorCode.MAILBOX_FULL,
        (0,),
    )


def test_what_is_already_stored_takes_no_room_and_no_rate() -> None:
    server = Server()
    three = [envelope(mid=f"m{n}", body=b"") for n in range(3)]
    server.accepted(a_send(*three))
    assert server.accepted(a_send(*three, cmid="other", pair_refused=(0, 1, 2))).duplicate


def test_acks_and_expiry_make_room() -> None:
    server = Server(pending_entries_max=1)
    server.accepted(a_send())
    server.state.ack(BOB, [an_id("m1")])
    server.accepted(a_send(envelope(mid="m2"), cmid="c2"))
    assert server.refused(a_send(envelope(mid="m3"), cmid="c3")) == (ErrorCode.MAILBOX_FULL, (0,))
    server.now_ms += 600_000
    server.accepted(a_send(envelope(mid="m3"), cmid="c3"))


def test_positions_rise_in_a_mailbox_whatever_the_clock_does() -> None:
    server = Server(pending_entries_max=10)
    first = server.accepted(a_send(envelope(mid="a"), envelope(mid="b"))).stored
    server.now_ms -= HOUR_MS
    second = server.accepted(a_send(envelope(mid="c"), cmid="c2")).stored
    server.now_ms += 2 * HOUR_MS
    third = server.accepted(a_send(envelope(mid="d"), cmid="c3")).stored
    stored = [*first, *second, *third]
    positions = [entry.held.position for entry in stored]
    start = NOW_MS * 1000
    assert positions == [start, start + 1, start + 2, start + HOUR_MS * 1000]
    assert [entry.previous_head for entry in stored] == [0, *positions[:-1]]


def test_002_the_echo_stands_behind_the_envelopes_in_the_senders_own_mailbox() -> None:
    server = Server()
    verdict = server.accepted(a_send(envelope(), envelope(to=ALICE, mid="self"), echo=True))
    echo = verdict.stored[-1]
    assert (echo.device, echo.held.echo, echo.held.pv, echo.held.body) == (ALICE, True, 0, b"")
    assert (echo.held.mid, echo.held.cmid) == (echo_mid(KEY, ALICE, an_id("cmid")), an_id("cmid"))
    assert echo.held.expires_at - echo.held.accepted_at == ECHO_TTL_S * 1000
    assert echo.previous_head == verdict.stored[1].held.position
    assert len(verdict.results) == 2


def test_002_an_echo_is_in_no_quota_and_there_once() -> None:
    server = Server(pending_entries_max=1)
    server.accepted(a_send(envelope(to=ALICE), echo=True))
    assert len(server.pending(ALICE)) == 1
    server.now_ms += 7_200_000
    again = server.accepted(a_send(envelope(to=ALICE, mid="m2"), echo=True))
    assert [entry.held.echo for entry in again.stored] == [False]


def test_002_a_full_echo_backlog_is_the_last_check() -> None:
    server = Server()
    entries = server.state.mailboxes[ALICE].entries
    for n in range(ECHO_BACKLOG_MAX):
        mid = an_id(f"echo{n}")
        entries[mid] = Held(mid, n + 1, 0, b"", None, mid, NOW_MS, NOW_MS + 1_000, echo=True)
    assert server.refused(a_send(echo=True)) == (ErrorCode.ECHO_BACKLOG_FULL, None)
    assert server.refused(a_send(envelope(pv=2), echo=True)) == (ErrorCode.UNSUPPORTED_PROTOCOL_VERSION, (0,))
    server.accepted(a_send(cmid="without"))
    server.now_ms += 1_000  # the echoes expired
    server.accepted(a_send(envelope(mid="m2"), echo=True))


def test_002_a_cmid_shows_only_in_mailboxes_of_the_senders_own_identity() -> None:
    server = Server()
    verdict = server.accepted(a_send(envelope(to=ALICE), envelope(to=BOBS_OTHER, mid="m2"), actor=BOB))
    assert [entry.held.cmid for entry in verdict.stored] == [None, an_id("cmid")]


def test_nobody_can_hide_an_echo_by_storing_an_envelope_first_without_its_key() -> None:
    server = Server()
    server.accepted(a_send(envelope(to=ALICE, mid="guess"), actor=BOB))
    verdict = server.accepted(a_send(cmid="c2", echo=True))
    assert verdict.stored[-1].held.echo


def test_an_envelope_under_an_echos_mid_is_a_conflict() -> None:
    server = Server()
    server.accepted(a_send(echo=True))
    stolen = SendEnvelope(ALICE, echo_mid(KEY, ALICE, an_id("cmid")), 0, b"")
    server.rule = Rule(Policy(protocol_versions=(0, 1)), lambda device, cmid: echo_mid(KEY, device, cmid))
    assert server.refused(a_send(stolen, cmid="c2", actor=BOB)) == (ErrorCode.MESSAGE_ID_CONFLICT, (0,))


def test_a_fold_judges_each_request_against_what_the_ones_before_left() -> None:
    server = Server(pending_entries_max=2)
    requests = [
        a_send(envelope(mid="a")),
        a_send(envelope(mid="a")),
        a_send(envelope(mid="b")),
        a_send(envelope(mid="b"), cmid="c2"),
        a_send(envelope(mid="c"), cmid="c3"),
        a_send(envelope(mid="a", body=b"x"), cmid="c4"),
        a_send(envelope(mid="b"), cmid="c4"),
    ]
    verdicts = server.rule.fold(server.state, requests, NOW_MS * 1000)
    assert [v.code if isinstance(v, Refused) else (v.replay, v.duplicate) for v in verdicts] == [
        (False, False),
        (True, True),
        ErrorCode.IDEMPOTENCY_KEY_REUSED,
        (False, False),
        ErrorCode.MAILBOX_FULL,
        ErrorCode.MESSAGE_ID_CONFLICT,
        (False, True),
    ]
