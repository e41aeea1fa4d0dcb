"""Options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer


def directory(text: str) -> Path:
    """The directory that was named. An empty text, as of a variable that is not set, would be the current one."""
    if not text.strip():
        raise typer.BadParameter("it is empty; name a directory, or leave the option out")
    return Path(text)


DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        parser=directory,
        help="Use the PostgreSQL, Valkey and keyring that `mailboxd up` runs there, instead of MAILBOXD_POSTGRES_DSN, "
        "MAILBOXD_REDIS_URL and MAILBOXD_SECRETS_DIR.",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings; the environment wins.")
]
# For commands that take an id as an argument: an id may begin with a hyphen and is no option then.
TAKES_IDS: Final = {"ignore_unknown_options": True}

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
