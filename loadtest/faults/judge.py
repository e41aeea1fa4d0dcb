"""From the notes of all client processes to a verdict: `loadtest.recorder` judges, this feeds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.recorder import Attempt, OfferedEnvelope, Recorder


class Device(Protocol):
    """Whose notes they are."""

    @property
    def device(self) -> bytes: ...


@dataclass(slots=True)
class Findings:
    """What the history shows."""

    verdict: dict[str, Any]
    refusals: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    problems: list[str] = field(default_factory=list)  # broken promises that the recorder has no word for


def judge(history: Iterable[tuple[Device, dict[str, Any]]], *, now_ms: int | None = None) -> Findings:
    """Feed the lines, which must be in the order in which they happened. `now_ms`: the server's time at the end."""
    recorder = Recorder(app_view=True)
    findings = Findings({})
    attempts: dict[tuple[bytes, str], Attempt] = {}
    confirmed: set[tuple[bytes, str]] = set()
    open_: dict[bytes, dict[str, None]] = {}  # of each device, in the order of its sends
    for client, line in history:
        device = bytes.fromhex(line["device"]) if "device" in line else client.device
        key = (device, line.get("cmid", ""))
        match line["what"]:
            case "offered":
                if key in attempts:
                    findings.problems.append("a client message id was issued twice")
                envelopes = [OfferedEnvelope(*map(bytes.fromhex, one)) for one in line["envelopes"]]
                attempts[key] = recorder.offered(device, device, envelopes)
                open_.setdefault(device, {})[line["cmid"]] = None
            case "reconciled":
                # A new connection: what has no answer goes out once more, in its old order and ahead of anything new.
                # The server may have refused it in the old one without a chance to say so, and accepted later ones.
                for cmid in open_.get(device, ()):
                    attempts[device, cmid] = recorder.offered(device, device, _envelopes(attempts[device, cmid]))
            case "accepted":
                if key in confirmed:
                    findings.problems.append("a send was confirmed twice to its app")
                confirmed.add(key)
                results = [(bytes.fromhex(mid), at, expires) for mid, at, expires in line["results"]]
                recorder.accepted(attempts[key], results, duplicate=line["duplicate"])
                open_[device].pop(line["cmid"], None)
            case "refused":
                refused = {bytes.fromhex(mid) for mid, _ in line["refused"]}
                findings.refusals.update(code for _, code in line["refused"])
                attempts[key] = recorder.given_up(attempts[key], refused)
                if not attempts[key].records:
                    open_[device].pop(line["cmid"], None)
            case "again":
                # Refused for now and sent once more: behind what was in flight, ahead of what has not left yet.
                refused_now = attempts[key]
                attempts[key] = recorder.offered(device, device, _envelopes(refused_now), instead_of=refused_now)
            case "unknown":
                findings.unknown += 1
            case "handed":
                recorder.handed_over(device, bytes.fromhex(line["mid"]), bytes.fromhex(line["content"]))
            case "confirmed":
                recorder.confirmed(device, bytes.fromhex(line["mid"]))
            case _:
                pass  # facts for people
    findings.verdict = recorder.verdict(now_ms=now_ms)
    return findings


def _envelopes(attempt: Attempt) -> list[OfferedEnvelope]:
    return [
        OfferedEnvelope(record.device, record.key[len(record.device) :], record.content or b"")
        for record in attempt.records
    ]
