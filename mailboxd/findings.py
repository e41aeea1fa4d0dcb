"""What a check of the doctor found."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(NamedTuple):
    """One check. `told` says what was found, and what to do unless it is ok."""

    check: str
    verdict: Verdict
    told: str
