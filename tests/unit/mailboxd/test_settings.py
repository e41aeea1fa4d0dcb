"""Settings of a command: options, then the services of a data directory, then environment, then file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mailboxd.running import Running, holding, write_runtime_file
from mailboxd.settings import load_all_settings, load_settings
from mailboxd.terminal import CommandError
from runtime.config import ConfigError, GatewayConfig, ProcessConfig

SERVICES = {"MAILBOXD_POSTGRES_DSN": "postgresql://name:word@db/mail", "MAILBOXD_REDIS_URL": "redis://cache"}


def test_options_win_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mailboxd.toml"
    file.write_text('listen = "127.0.0.1:1"\nops_listen = "127.0.0.1:2"\nheartbeat_s = 20\n')
    config = load_settings(
        GatewayConfig,
        data_dir=None,
        config_file=file,
        environ={**SERVICES, "MAILBOXD_LISTEN": "127.0.0.1:3", "MAILBOXD_OPS_LISTEN": "127.0.0.1:4"},
        options={"listen": "127.0.0.1:5", "ops_listen": None},
    )
    assert (config.listen.port, config.ops_listen.port, config.heartbeat_s) == (5, 4, 20)


def test_a_data_directory_gives_its_services_and_secrets(tmp_path: Path) -> None:
    document = {"urls": [], "ops_urls": [], "postgres_dsn": "postgresql://there", "redis_url": "unix:///there"}
    with holding(tmp_path):
        write_runtime_file(tmp_path, document)
        config = load_settings(ProcessConfig, data_dir=tmp_path, config_file=None, environ=SERVICES)
    assert (config.postgres_dsn, config.redis_url) == ("postgresql://there", "unix:///there")
    assert config.secrets_dir == tmp_path / "secrets"


def test_a_data_directory_where_nothing_runs_is_an_error_and_not_the_environment(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="nothing runs on"):
        load_settings(ProcessConfig, data_dir=tmp_path, config_file=None, environ=SERVICES)


def test_every_mistake_of_gateway_and_worker_is_told_once() -> None:
    environ = {
        "MAILBOXD_REDIS_URL": "http://cache",
        "MAILBOXD_HEARTBEAT_S": "3",
        "MAILBOXD_WAKE_REPEAT_S": "soon",
        "MAILBOXD_TLS_KEY": "/missing.pem",
        "MAILBOXD_HEARTBEATS": "5",
    }
    with pytest.raises(ConfigError) as caught:
        load_all_settings(data_dir=None, config_file=None, environ=environ)
    names = [problem.partition(":")[0] for problem in caught.value.problems]
    assert sorted(names) == sorted(
        [
            "MAILBOXD_POSTGRES_DSN",
            "MAILBOXD_REDIS_URL",
            "MAILBOXD_HEARTBEAT_S",
            "MAILBOXD_WAKE_REPEAT_S",
            "MAILBOXD_TLS_KEY",
            "MAILBOXD_HEARTBEATS",
        ]
    )


def test_of_a_running_server_each_process_is_shown_with_where_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls, ops_urls = ("http://127.0.0.1:81", "http://[::1]:82"), tuple(f"http://127.0.0.1:9{n}" for n in range(3))
    running = Running(urls, ops_urls, "postgresql://a/b", "redis://c/0", tmp_path / "secrets")
    monkeypatch.setattr("mailboxd.settings.find_running", lambda _data_dir: running)
    shown = load_all_settings(data_dir=tmp_path, config_file=None, environ={})
    places = {name: (part.get("listen"), part["ops_listen"], part["log_dir"]) for name, part in shown.items()}
    logs = str(tmp_path / "logs")
    assert places == {
        "gateway-1": ("127.0.0.1:81", "127.0.0.1:90", logs),
        "gateway-2": ("[::1]:82", "127.0.0.1:91", logs),
        "worker": (None, "127.0.0.1:92", logs),
    }
    assert shown["gateway-1"]["loopback_exempt"] is True
    single = running._replace(urls=urls[:1], ops_urls=ops_urls[:2])
    monkeypatch.setattr("mailboxd.settings.find_running", lambda _data_dir: single)
    assert list(load_all_settings(data_dir=tmp_path, config_file=None, environ={})) == ["gateway", "worker"]


def test_the_effective_settings_show_no_secret() -> None:
    environ = {
        "MAILBOXD_POSTGRES_DSN": "postgresql://name:word@db/mail?password=other",
        "MAILBOXD_REDIS_URL": "redis://:third@cache/0",
    }
    shown = str(load_all_settings(data_dir=None, config_file=None, environ=environ))
    assert all(secret not in shown for secret in ("word@", "other", "third"))
    assert "db/mail" in shown
    assert "cache/0" in shown
