"""Settings: every mistake at once, by name; nothing looked up later; secrets never shown."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from pydantic import ValidationError

from loadtest.certificate import self_signed
from runtime.config import ConfigError, GatewayConfig, WorkerConfig, known_settings, load_config, mask_url
from runtime.setting_types import ListenAddress

ENOUGH = {
    "MAILBOXD_POSTGRES_DSN": "postgresql://app:hunter2@db/mailboxd",
    "MAILBOXD_REDIS_URL": "redis://:hunter2@cache",
}


def problems_of(environ: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(GatewayConfig, environ)
    return caught.value.problems


def test_two_addresses_are_enough() -> None:
    config = load_config(GatewayConfig, ENOUGH)
    assert config.listen == ListenAddress("127.0.0.1", 8080)
    assert config.heartbeat_s == 45
    assert config.postgres_dsn == ENOUGH["MAILBOXD_POSTGRES_DSN"]


def test_every_mistake_is_told_at_once_with_its_setting() -> None:
    problems = problems_of(
        {
            "MAILBOXD_POSTGRES_DSN": "mysql://db",
            "MAILBOXD_HEARTBEAT_S": "4",
            "MAILBOXD_LISTEN": "8080",
            "MAILBOXD_TRUSTED_PROXIES": "10.0.0.1/8",
            "MAILBOXD_ALLOWED_ORIGINS": "https://app.example/path",
            "MAILBOXD_TLS_KEY": "no/such/file",
            "MAILBOXD_LITSEN": "0.0.0.0:1",
            "MAILBOXD_POSTGRES_POOL_MIN": "50",
        }
    )
    named = {problem.partition(":")[0] for problem in problems}
    assert named == {
        "MAILBOXD_POSTGRES_DSN",
        "MAILBOXD_REDIS_URL",
        "MAILBOXD_HEARTBEAT_S",
        "MAILBOXD_LISTEN",
        "MAILBOXD_TRUSTED_PROXIES",
        "MAILBOXD_ALLOWED_ORIGINS",
        "MAILBOXD_TLS_KEY",
        "MAILBOXD_LITSEN",
        "MAILBOXD_POSTGRES_POOL_MIN, MAILBOXD_POSTGRES_POOL_MAX",
    }


def test_a_misspelt_setting_is_a_mistake_with_a_suggestion() -> None:
    assert problems_of(ENOUGH | {"MAILBOXD_HEARTBEAT": "30"}) == [
        "MAILBOXD_HEARTBEAT: there is no such setting; did you mean MAILBOXD_HEARTBEAT_S?"
    ]


def test_nothing_is_suggested_for_a_name_that_is_like_none() -> None:
    assert problems_of(ENOUGH | {"MAILBOXD_FOO": "1"}) == ["MAILBOXD_FOO: there is no such setting"]


def test_a_mistake_does_not_repeat_the_value() -> None:
    problems = problems_of({"MAILBOXD_POSTGRES_DSN": "mysql://u:hunter2@db", "MAILBOXD_REDIS_URL": "hunter2"})
    assert "hunter2" not in "".join(problems)


@pytest.mark.parametrize("given", ["MAILBOXD_TLS_KEY", "MAILBOXD_TLS_CERTIFICATE"])
def test_tls_needs_both_files(tmp_path: Path, given: str) -> None:
    (tmp_path / "file.pem").write_text("x")
    [problem] = problems_of(ENOUGH | {given: str(tmp_path / "file.pem")})
    assert problem == "MAILBOXD_TLS_CERTIFICATE, MAILBOXD_TLS_KEY: belong together: set both or neither"


def test_a_key_that_does_not_fit_its_certificate_is_named_with_the_other_mistakes(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    certificate, key = self_signed(tmp_path / "one")
    _, foreign_key = self_signed(tmp_path / "two")

    def problems_with(used: Path) -> list[str]:
        return problems_of(
            ENOUGH
            | {
                "MAILBOXD_TLS_CERTIFICATE": str(certificate),
                "MAILBOXD_TLS_KEY": str(used),
                "MAILBOXD_POSTGRES_POOL_MIN": "9",
                "MAILBOXD_POSTGRES_POOL_MAX": "2",
            }
        )

    pools = "MAILBOXD_POSTGRES_POOL_MIN, MAILBOXD_POSTGRES_POOL_MAX: the minimum is above the maximum"
    both = "MAILBOXD_TLS_CERTIFICATE, MAILBOXD_TLS_KEY: cannot be used together"
    assert problems_with(key) == [pools]
    assert problems_with(foreign_key) == [pools, f"{both} (KEY_VALUES_MISMATCH)"]
    assert problems_with(certificate)[1].startswith(both)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:80", ListenAddress("0.0.0.0", 80)),
        ("[::]:8080", ListenAddress("::", 8080)),
        ("localhost:0", ListenAddress("localhost", 0)),
    ],
)
def test_listen_addresses_are_read_and_written_alike(text: str, address: ListenAddress) -> None:
    assert load_config(GatewayConfig, ENOUGH | {"MAILBOXD_LISTEN": text}).listen == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", ":80", "host", "host:", "host:65536", "host:-1", "host:８０"])
def test_what_is_not_an_address_is_refused(text: str) -> None:
    assert problems_of(ENOUGH | {"MAILBOXD_LISTEN": text})[0].startswith("MAILBOXD_LISTEN: must be HOST:PORT")


def test_lists_come_with_commas_or_as_toml_lists(tmp_path: Path) -> None:
    file = tmp_path / "mailboxd.toml"
    file.write_text('trusted_proxies = ["10.0.0.0/8"]\nallowed_origins = ["https://app.example"]\n')
    config = load_config(GatewayConfig, ENOUGH | {"MAILBOXD_CONFIG": str(file)})
    assert config.trusted_proxies == (ipaddress.ip_network("10.0.0.0/8"),)
    assert config.allowed_origins == ("https://app.example",)
    config = load_config(GatewayConfig, ENOUGH | {"MAILBOXD_TRUSTED_PROXIES": "10.0.0.0/8, ::1"})
    assert config.trusted_proxies == (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("::1"))


def test_the_environment_wins_over_the_file_and_an_override_over_both(tmp_path: Path) -> None:
    file = tmp_path / "mailboxd.toml"
    file.write_text('postgres_dsn = "postgresql:///a"\nredis_url = "redis://a"\nheartbeat_s = 10\nwake_repeat_s = 60\n')
    environ = {"MAILBOXD_CONFIG": str(file)}
    assert load_config(GatewayConfig, environ).heartbeat_s == 10
    assert load_config(GatewayConfig, environ | {"MAILBOXD_HEARTBEAT_S": "20"}).heartbeat_s == 20
    assert load_config(GatewayConfig, environ | {"MAILBOXD_HEARTBEAT_S": "20"}, heartbeat_s=30).heartbeat_s == 30
    assert load_config(GatewayConfig, environ, heartbeat_s=None).heartbeat_s == 10


def test_one_file_serves_all_processes(tmp_path: Path) -> None:
    file = tmp_path / "mailboxd.toml"
    file.write_text('postgres_dsn = "postgresql:///a"\nredis_url = "redis://a"\nheartbeat_s = 10\nwake_repeat_s = 60\n')
    assert load_config(WorkerConfig, {"MAILBOXD_CONFIG": str(file)}).wake_repeat_s == 60


@pytest.mark.parametrize("content", [b"heartbeat_s = ", b"\xff"])
def test_a_broken_file_is_told_and_hides_no_other_mistake(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mailboxd.toml"
    file.write_bytes(content)
    named = [line.partition(":")[0] for line in problems_of({"MAILBOXD_CONFIG": str(file)})]
    assert named == ["MAILBOXD_CONFIG", "MAILBOXD_POSTGRES_DSN", "MAILBOXD_REDIS_URL"]


def test_a_missing_file_and_an_unknown_name_in_a_file_are_mistakes(tmp_path: Path) -> None:
    assert problems_of(ENOUGH | {"MAILBOXD_CONFIG": str(tmp_path / "none")})[0].startswith("MAILBOXD_CONFIG: ")
    file = tmp_path / "mailboxd.toml"
    file.write_text("heartbeats = 1\n")
    assert problems_of(ENOUGH | {"MAILBOXD_CONFIG": str(file)}) == [
        "heartbeats: there is no such setting; did you mean heartbeat_s?"
    ]


def test_a_config_is_never_looked_up_and_never_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAILBOXD_HEARTBEAT_S", "300")
    config = load_config(GatewayConfig, ENOUGH)
    assert config.heartbeat_s == 45
    with pytest.raises(ValidationError):
        config.heartbeat_s = 60  # type: ignore[misc]


def test_secrets_are_neither_printed_nor_listed() -> None:
    config = load_config(GatewayConfig, ENOUGH)
    assert "hunter2" not in repr(config)
    shown = config.masked()
    assert "hunter2" not in str(shown)
    assert shown["postgres_dsn"] == "postgresql://***@db/mailboxd"
    assert shown["heartbeat_s"] == 45
    assert shown.keys() == GatewayConfig.model_fields.keys()


def test_masking_keeps_where_and_drops_who() -> None:
    assert mask_url("redis://cache:6379/1") == "redis://cache:6379/1"
    assert mask_url("postgresql://u:p@h/d?password=x") == "postgresql://***@h/d?***"
    assert mask_url("http://[::1") == "***"


def test_settings_of_tests_and_fault_points_are_not_mistakes() -> None:
    load_config(GatewayConfig, ENOUGH | {"MAILBOXD_TEST_REQUIRE_ALL": "1", "MAILBOXD_FAULTPOINTS": "a=kill"})
    assert "wake_repeat_s" in known_settings()
