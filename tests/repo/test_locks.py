"""The lock files: whole, hashed, without the address of any index, and what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def pins(lock: str) -> dict[str, Version]:
    return {canonicalize_name(name): Version(version) for name, version in PIN.findall((ROOT / lock).read_text())}


def asked_for(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize(("lock", "extras"), [(LOCKS[0], ("build",)), (LOCKS[1], ("build", "dev"))])
def test_the_lock_satisfies_the_project(lock: str, extras: tuple[str, ...]) -> None:
    locked = pins(lock)
    for requirement in asked_for(*extras):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in {lock}: run `make lock`"
        assert version in requirement.specifier, f"{requirement} is not what {lock} has: run `make lock`"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_its_hashes_and_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-i|--index|--extra-index|--find-links|--trusted)", text, re.MULTILINE)
    for entry in re.split(r"\n(?=\S)", text.strip()):
        assert PIN.match(entry), entry
        assert "--hash=sha256:" in entry, entry


def test_development_runs_on_exactly_what_is_shipped() -> None:
    shipped, development = pins(LOCKS[0]), pins(LOCKS[1])
    assert {name: development.get(name) for name in shipped} == shipped
