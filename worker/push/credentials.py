"""What is wrong with a provider's credentials: found at the start, before anything is served."""

from __future__ import annotations


class CredentialsUnusable(Exception):
    """The message says which setting it is and what kind of thing is wrong; it holds no secret."""
