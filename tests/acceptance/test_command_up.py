"""`mailboxd up`: one command runs the whole server, survives the loss of any part, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from loadtest.certificate import self_signed
from mailboxd.borrowed_policy import NOTE_FILE
from tests.support.command import command_line, environment, run
from tests.support.directories import servers_directory
from tests.support.up import Up, is_running, running_up, until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A directory that is not there yet, at a place that the servers' user can reach."""
    parent = servers_directory()
    yield parent / "data"
    shutil.rmtree(parent, ignore_errors=True)


def all_gone(pids: list[int]) -> bool:
    return not any(map(is_running, pids))


def answers(up: Up) -> bool:
    try:
        return bool(up.get("/readyz")["status"] == "ready")
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def now_running(data_dir: Path) -> list[int]:
    """The pids that `up` reports at this moment."""
    pids = json.loads((data_dir / "up.json").read_text())["pids"]
    return [*pids["gateways"], pids["worker"], pids["postgres"], pids["valkey"]]


def listening_addresses(pids: list[int]) -> set[str]:
    """Where these processes accept connections, as the kernel says."""
    sockets = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                sockets.add(os.readlink(descriptor))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                packed = bytes.fromhex(local.partition(":")[0])
                words = [packed[at : at + 4][::-1] for at in range(0, len(packed), 4)]  # in this machine's byte order
                found.add(str(ipaddress.ip_address(b"".join(words))))
    return found


def test_a_fresh_directory_serves_stops_without_a_trace_and_serves_again(data_dir: Path) -> None:
    with running_up(data_dir, "--gateways", "2") as up:
        report = up.report
        assert set(report) >= {"url", "urls", "ws_urls", "ops_urls", "postgres_dsn", "redis_url", "data_dir", "pids"}
        assert (len(report["urls"]), len(report["ops_urls"]), report["data_dir"]) == (2, 3, str(data_dir))
        assert all(map(is_running, up.pids))
        assert listening_addresses(up.pids) == {"127.0.0.1"}, "nothing listens beyond this machine unless told"
        for url in report["urls"]:
            assert up.get("/healthz", url=url)
            assert up.get("/readyz", url=url)
        first = up.get("/v1/instance")
        assert first["registration"] == "open"
        for url in report["ops_urls"]:
            assert up.get("/healthz", url=url)

        status = run("admin", "status", "--json", "--data-dir", str(data_dir))
        assert status.json["instance_id"] == first["instance_id"]
        assert set(status.json["queue"]) == {"waiting", "handed_out"}
        assert set(status.json) >= {"outbox", "outbox_due", "outbox_tries", "wakes_in_trouble", "cleanup_overdue_s"}
        assert len(run("admin", "status", "--data-dir", str(data_dir)).out.splitlines()) < 25  # one screen
        closed = run("admin", "policy", "set", "registration=closed", "--data-dir", str(data_dir))
        assert closed.code == 0
        until(lambda: up.get("/v1/instance")["registration"] == "closed", within_s=5, what="policy in effect")

        second = run("up", "--data-dir", str(data_dir), "--port", "0", "--ops-port", "0")
        assert (second.code, f"(pid {up.process.pid})" in second.err) == (1, True)

        assert up.stop() == 0
        assert all_gone(up.pids)
        assert not (data_dir / "up.json").exists()
    nothing = run("admin", "status", "--data-dir", str(data_dir))
    assert (nothing.code, "nothing runs on" in nothing.err) == (1, True)

    # What a killed demo leaves: its own value of the policy, and the note of what was there before.
    (data_dir / NOTE_FILE).write_text('{"key": "submit_rate_per_pair", "value": 5, "before": 6}')
    with running_up(data_dir) as again:
        instance = again.get("/v1/instance")
        assert instance["instance_id"] == first["instance_id"]
        policy = run("admin", "policy", "show", "--json", "--data-dir", str(data_dir)).json
        assert policy["submit_rate_per_pair"] == 6
        assert not (data_dir / NOTE_FILE).exists()
        assert instance["registration"] == "closed", "up opens registration only where it creates the directory"
        assert again.stop(signal.SIGINT) == 0
        assert all_gone(again.pids)


def test_a_killed_up_takes_everything_with_it_and_the_next_one_works(data_dir: Path) -> None:
    with running_up(data_dir) as up:
        instance = up.get("/v1/instance")
        up.process.kill()
        up.process.wait()
        until(lambda: all_gone(up.pids), what="everything ends with its parent")
    with running_up(data_dir) as again:
        assert again.get("/v1/instance")["instance_id"] == instance["instance_id"]
        assert again.stop() == 0
        assert all_gone(again.pids)


def test_whatever_part_is_killed_comes_back(data_dir: Path) -> None:
    with running_up(data_dir) as up:
        killed = up.pids
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        until(lambda: set(now_running(data_dir)).isdisjoint(killed), what="each part is started again")
        until(lambda: answers(up), what="the gateway is ready again at its old address")
        pids = now_running(data_dir)
        assert run("admin", "status", "--data-dir", str(data_dir)).code == 0, "the services are at their old addresses"
        assert up.stop() == 0
        assert all_gone(pids)


def test_a_second_ctrl_c_does_not_wait_for_the_drain(data_dir: Path) -> None:
    with running_up(data_dir, settings={"MAILBOXD_DRAIN_DEADLINE_S": "3000"}) as up:
        host, port = up.report["url"].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as idle:
            idle.sendall(b"GET /v1/instance HTTP/1.1\r\n")
            os.kill(up.report["pids"]["gateways"][0], signal.SIGSTOP)  # it cannot even begin to drain
            up.process.send_signal(signal.SIGINT)
            until(lambda: not (data_dir / "up.json").exists(), what="it has begun to stop")
            up.process.send_signal(signal.SIGINT)
            assert up.process.wait(110) == 0
        assert all_gone(up.pids)


def test_a_stop_while_it_starts_leaves_nothing(data_dir: Path) -> None:
    process = subprocess.Popen(
        command_line("up", "--data-dir", str(data_dir), "--port", "0", "--ops-port", "0"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: (data_dir / "postgres").exists() or (data_dir / "logs").exists(), what="it has begun")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=110)
    assert (process.returncode, out, err) == (0, "", "")
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and str(data_dir) in command_of(int(pid))]
    assert left == []


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def test_wrong_settings_are_all_named_before_anything_runs(data_dir: Path) -> None:
    refused = run(
        "up", "--data-dir", str(data_dir), "--port", "0", "--ops-port", "0",
        settings={"MAILBOXD_HEARTBEAT_S": "1", "MAILBOXD_WAKE_REPEAT_S": "0", "MAILBOXD_TLS_KEY": "/no.pem"},
    )  # fmt: skip
    assert refused.code == 78
    for name in ("MAILBOXD_HEARTBEAT_S", "MAILBOXD_WAKE_REPEAT_S", "MAILBOXD_TLS_KEY"):
        assert name in refused.err
    assert "Traceback" not in refused.err


def test_a_port_in_use_is_one_clear_line(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = run("up", "--data-dir", str(data_dir), "--port", port, "--ops-port", "0")
    assert refused.code == 1
    assert (
        refused.err == f"mailboxd: cannot listen on 127.0.0.1:{port} (Address already in use); choose another --port\n"
    )


def test_a_person_is_told_where_it_listens_and_how_to_try_it(data_dir: Path) -> None:
    shown: list[str] = []
    with subprocess.Popen(
        command_line("up", "--data-dir", str(data_dir), "--port", "0", "--ops-port", "0"),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while not shown or not shown[-1].startswith("Ctrl-C"):
            shown.append(process.stdout.readline())
            assert shown[-1], "it ended before it was ready"
        process.send_signal(signal.SIGINT)
        assert process.wait(110) == 0
    curl = next(line for line in shown if "curl" in line).partition("curl ")[2].strip()
    assert curl.startswith("http://127.0.0.1:")
    assert curl.endswith("/v1/instance")


def test_a_process_whose_parent_is_another_one_ends_at_once() -> None:
    settings = {"MAILBOXD_POSTGRES_DSN": "postgresql://", "MAILBOXD_REDIS_URL": "redis://"}
    assert run("worker", "--parent-pid", "1", settings=settings).code == -signal.SIGKILL


def test_a_hang_up_hands_a_new_certificate_to_every_gateway(data_dir: Path, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    settings = {"MAILBOXD_TLS_CERTIFICATE": str(certificate), "MAILBOXD_TLS_KEY": str(key)}

    def is_served(url: str) -> bool:
        """Whether the certificate on disk is the one that this gateway shows."""
        place = urlsplit(url)
        shown = ssl.get_server_certificate((str(place.hostname), int(place.port or 0)))
        return shown.split() == certificate.read_text().split()

    with running_up(data_dir, "--gateways", "2", settings=settings) as up:
        urls = up.report["urls"]
        assert all(url.startswith("https://") for url in urls)
        assert all(map(is_served, urls))
        self_signed(tmp_path)
        assert not any(map(is_served, urls))
        up.process.send_signal(signal.SIGHUP)
        until(lambda: all(map(is_served, urls)), what="both gateways show the new one")
        assert now_running(data_dir) == up.pids  # nobody had to start again
        assert up.stop() == 0
