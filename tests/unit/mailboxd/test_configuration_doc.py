"""docs/configuration.md says what the code does: every setting and policy key, with its default and bounds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from runtime.config import GatewayConfig, ProcessConfig, WorkerConfig
from store.policy_rules import BOUNDS, KEYS, Policy

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+?) \|", re.MULTILINE)


def section(title: str) -> dict[str, str]:
    """The rows below a heading: first column to second."""
    text = DOCUMENT.read_text()
    after = text.split(f" {title}\n", 1)[1]
    return dict(ROW.findall(re.split(r"^#+ ", after, maxsplit=1, flags=re.MULTILINE)[0]))


def shown(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default()
    if value is None or value == ():
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


@pytest.mark.parametrize(
    ("title", "kind", "without"),
    [
        ("Every process", ProcessConfig, ()),
        ("Gateway", GatewayConfig, ProcessConfig.model_fields),
        ("Worker", WorkerConfig, ProcessConfig.model_fields),
    ],
)
def test_every_setting_is_there_with_its_default(title: str, kind: Any, without: Any) -> None:
    fields = {name: shown(field) for name, field in kind.model_fields.items() if name not in without}
    assert section(title) == fields


def test_every_policy_key_is_there_with_its_default_and_bounds() -> None:
    rows = section("Policy")
    assert list(rows) == list(KEYS)
    policy = Policy()
    text = DOCUMENT.read_text()
    for key, bounds in BOUNDS.items():
        assert rows[key] == f"`{getattr(policy, key)}`"
        assert f"| `{key}` | `{getattr(policy, key)}` | {bounds.low}..{bounds.high} |" in text
