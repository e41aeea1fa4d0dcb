"""Ids by which an answer is found again in the log. They name a moment, not a person."""

from __future__ import annotations

import secrets


def new_request_id() -> str:
    """16 hex digits, random."""
    return secrets.token_hex(8)
