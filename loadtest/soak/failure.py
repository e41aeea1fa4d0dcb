"""What a soak run fails with, apart from a bad verdict."""

from __future__ import annotations


class SoakFailed(Exception):
    """Locust did not run as it should; the message holds the end of what it said."""
