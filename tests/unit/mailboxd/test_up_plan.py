"""What `mailboxd up` runs: ports one after the other, the settings of the environment, every mistake at once."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mailboxd.terminal import CommandError
from mailboxd.up_plan import UpOptions, make_plan, report_of, show_report
from runtime.config import ConfigError

POSTGRES, REDIS = "postgresql://u:word@/m?host=/run", "unix:///run/valkey.sock?db=0"


def options(tmp_path: Path, *, host: str = "127.0.0.1", port: int = 0, gateways: int = 2) -> UpOptions:
    return UpOptions(tmp_path, host, port, 0, gateways)


def free_run_of_ports(count: int) -> int:
    """The first of `count` ports that follow each other and are free now."""
    for first in range(20_000, 60_000, count):
        try:
            held = [socket.create_server(("127.0.0.1", first + step)) for step in range(count)]
        except OSError:
            continue
        for listener in held:
            listener.close()
        return first
    raise AssertionError("no run of free ports")


def test_gateways_listen_on_the_port_and_those_after_it(tmp_path: Path) -> None:
    first = free_run_of_ports(5)
    plan = make_plan(UpOptions(tmp_path, "127.0.0.1", first, first + 2, 2), {})
    assert plan.urls == (f"http://127.0.0.1:{first}", f"http://127.0.0.1:{first + 1}")
    assert plan.ops_urls == tuple(f"http://127.0.0.1:{first + 2 + step}" for step in range(3))
    assert [spec.environment["MAILBOXD_LISTEN"] for spec in plan.gateways] == [
        f"127.0.0.1:{first}",
        f"127.0.0.1:{first + 1}",
    ]
    assert plan.worker.environment["MAILBOXD_OPS_LISTEN"] == f"127.0.0.1:{first + 4}"
    assert plan.worker.ready_port == first + 4


def test_processes_get_the_embedded_services_and_their_directories(tmp_path: Path) -> None:
    plan = make_plan(options(tmp_path), {"MAILBOXD_POSTGRES_DSN": "postgresql://elsewhere"})
    plan = plan.with_services(POSTGRES, REDIS)
    for spec in (*plan.gateways, plan.worker):
        assert spec.environment["MAILBOXD_POSTGRES_DSN"] == POSTGRES
        assert spec.environment["MAILBOXD_REDIS_URL"] == REDIS
        assert spec.environment["MAILBOXD_SECRETS_DIR"] == str(tmp_path / "secrets")
        assert spec.environment["MAILBOXD_LOG_DIR"] == str(tmp_path / "logs")
        assert "--parent-pid" in spec.arguments


def test_loopback_is_exempt_from_limits_per_address_unless_told_otherwise(tmp_path: Path) -> None:
    exempt = make_plan(options(tmp_path), {})
    held = make_plan(options(tmp_path), {"MAILBOXD_LOOPBACK_EXEMPT": "false"})
    assert exempt.gateways[0].environment["MAILBOXD_LOOPBACK_EXEMPT"] == "true"
    assert held.gateways[0].environment["MAILBOXD_LOOPBACK_EXEMPT"] == "false"


def test_every_mistake_in_the_environment_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(
            options(tmp_path),
            {"MAILBOXD_HEARTBEAT_S": "1", "MAILBOXD_DRAIN_RATE": "1", "MAILBOXD_WAKE_REPEAT_S": "0"},
        )
    assert sorted(problem.partition(":")[0] for problem in caught.value.problems) == [
        "MAILBOXD_DRAIN_RATE",
        "MAILBOXD_HEARTBEAT_S",
        "MAILBOXD_WAKE_REPEAT_S",
    ]


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CommandError, match="choose another --port"):
        make_plan(options(tmp_path, port=taken.getsockname()[1], gateways=1), {})


def test_ipv6_addresses_are_written_in_brackets(tmp_path: Path) -> None:
    plan = make_plan(options(tmp_path, host="::1", gateways=1), {})
    assert plan.urls[0].startswith("http://[::1]:")


def test_the_report_says_where_everything_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = make_plan(options(tmp_path), {})
    pids = {"gateways": [2, 3], "worker": 4, "postgres": 5, "valkey": 6}
    report = report_of(plan, tmp_path, POSTGRES, REDIS, pids)
    assert report["url"] == plan.urls[0]
    assert report["ws_urls"] == [f"ws://{url.removeprefix('http://')}/v1/ws" for url in plan.urls]
    assert (report["pids"], report["data_dir"]) == (pids, str(tmp_path))
    show_report(report, as_json=False)
    shown = capsys.readouterr().out
    assert f"curl {plan.urls[0]}/v1/instance" in shown
    assert "word" not in shown, "a person's terminal shows no password"
    show_report({**report, "url": "https://127.0.0.1:1"}, as_json=False)
    assert "curl --insecure https://127.0.0.1:1/" in capsys.readouterr().out  # no certificate is for an address
    show_report(report, as_json=True)
    assert capsys.readouterr().out.count("\n") == 1
