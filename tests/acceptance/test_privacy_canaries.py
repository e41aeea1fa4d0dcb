"""What the server must not know, tell or keep (issue "Identities, devices, …", 9; seed 001, sections 1 and 2.9).

Recognisable values go through a real `mailboxd up` with debug logging: every request of the contract, errors of every
kind, faults of the database, a gateway that is killed. Then everything that the server wrote is searched for them. Each
may be found only where ALLOWED says so, and everything ALLOWED says must be found there: a stale line fails.
"""

from __future__ import annotations

import asyncio
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.canaries import Find
from tests.support.canary_evidence import Monitor, dumped_tables, pg_dump, stored_in_redis
from tests.support.canary_flow import Flow
from tests.support.directories import servers_directory
from tests.support.up import Up, running_up, until

# Where a value may be, and why.
ALLOWED: Final[dict[Find, str]] = {
    Find("ciphertext", "envelopes.envelope_bytes"): "kept, unread, until it is acked or expires",
    Find("message id", "envelopes.message_id"): "the recipient names it to ack",
    Find("client message id", "envelopes.client_message_id"): "an echo carries it back to its own device",
    Find("identity bundle", "identities.identity_public_bundle"): "public material that claimers get",
    Find("public key", "devices.device_public_key"): "what signatures are checked with",
    Find("public key", "prekeys.public_key"): "public material that claimers get",
    Find("public key", "last_resort_prekeys.public_key"): "public material that claimers get",
    Find("public key", "last_resort_prekeys.signature"): "public material that claimers get",
    Find("public key", "idempotency_records.response_body_safe"): "a repeated claim gets the same public keys",
    Find("public key", "instance_signing_keys.public_key"): "anybody may check tokens with it",
    Find("device id", "devices.device_id"): "the device itself",
    Find("device id", "mailboxes.device_id"): "the mailbox of the device",
    Find("device id", "mailbox_owners.device_id"): "the mailbox of the device",
    Find("device id", "envelopes.recipient_device_id"): "whose mailbox it lies in; the sender is nowhere",
    Find("device id", "ack_batches.device_ids"): "whose acked rows the cleanup deletes",
    Find("device id", "prekeys.device_id"): "whose keys they are",
    Find("device id", "last_resort_prekeys.device_id"): "whose key it is",
    Find("device id", "push_routes.device_id"): "whom the route wakes",
    Find("device id", "outbox_events.aggregate_ref"): "whom to wake",
    Find("device id", "auth_challenges.device_id"): "whom the challenge is good for",
    Find("device id", "idempotency_records.response_body_safe"): "a repeat gets the same ids",
    Find("identity id", "identities.identity_id"): "the identity itself",
    Find("identity id", "devices.identity_id"): "whose device it is",
    Find("identity id", "mailboxes.identity_id"): "which echoes and devices belong together",
    Find("identity id", "idempotency_records.response_body_safe"): "a repeat gets the same ids",
}


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """At a place that the servers' user can reach."""
    parent = servers_directory()
    yield parent / "data"
    shutil.rmtree(parent, ignore_errors=True)


def test_canaries_are_found_only_where_they_belong(data_dir: Path) -> None:
    settings = {"MAILBOXD_LOG_LEVEL": "debug", "MAILBOXD_TRUSTED_PROXIES": "127.0.0.1"}
    up_log = data_dir.parent / "up.log"
    with running_up(data_dir, "--gateways", "2", settings=settings, log=up_log) as up:
        monitor = Monitor(up.report["redis_url"])
        flow = Flow(up, data_dir)
        flow.play()
        until(lambda: has_tried_to_wake(up), what="the worker handled the wake")
        places = asyncio.run(dumped_tables(up.report["postgres_dsn"]))
        dump = pg_dump(up.report["postgres_dsn"])
        places["redis: stored"] = stored_in_redis(up.report["redis_url"])
        for url in up.report["ops_urls"]:
            until(lambda url=url: answers(url), what="the killed gateway is back")  # type: ignore[misc]
            with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
                places[f"metrics of {url}"] = answer.read()
        assert up.stop() == 0
    places["redis: commands"] = monitor.close()
    places["what up said"] = up_log.read_bytes()
    logs = [path for path in (data_dir / "logs").rglob("*") if path.is_file()]
    assert len(logs) >= 4, "gateways, worker and the database write logs"
    places |= {f"log {path.name}": path.read_bytes() for path in logs}
    places |= {f"error body {n}": body for n, body in enumerate(flow.error_bodies)}
    assert len(flow.error_bodies) >= 15
    assert b"PUBLISH" in places["redis: commands"].upper()

    found = flow.canaries.find_in_all(places)
    assert sorted(found - ALLOWED.keys()) == []
    assert sorted(ALLOWED.keys() - found) == [], "no longer there: take it off the list"

    # The same of a backup: a table's rows hold what its columns may hold, the archive what all of them may.
    allowed = {Find(kind, f"pg_dump {place.partition('.')[0]}") for kind, place in ALLOWED}
    allowed |= {Find(kind, "pg_dump: archive") for kind, _ in ALLOWED}
    found = flow.canaries.find_in_all(dump)
    assert sorted(found - allowed) == []
    assert found >= {Find("ciphertext", "pg_dump envelopes"), Find("ciphertext", "pg_dump: archive")}


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/healthz", timeout=5):
            return True
    except OSError:
        return False


def has_tried_to_wake(up: Up) -> bool:
    with urllib.request.urlopen(up.report["ops_urls"][-1] + "/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return any(line.startswith("mailboxd_pushes_total{") and float(line.rpartition(" ")[2]) > 0 for line in lines)
