"""The error table of docs/protocol.md, made from the one table in the code. Run as a module it writes the document."""

from __future__ import annotations

from pathlib import Path

from protocol.errors import ERRORS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
BEGIN, END = "<!-- errors: begin -->\n", "<!-- errors: end -->\n"


def error_table() -> str:
    """One row a code, in the order of the code's table."""
    rows = ["| code | HTTP | retryable | meaning |", "|---|---|---|---|"]
    for code, kind in ERRORS.items():
        rows.append(f"| {code} | {kind.http_status} | {'yes' if kind.retryable else 'no'} | {kind.message} |")
    return "\n".join(rows) + "\n"


def with_table(document: str) -> str:
    """The document with the table between its marks replaced by the present one."""
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{error_table()}{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
