"""`python -m tests.golden.write_openapi`: write docs/openapi.json again from the code as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from gateway.http.openapi import document

OPENAPI_FILE: Final = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"


def current_openapi() -> str:
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    OPENAPI_FILE.write_text(current_openapi(), encoding="utf-8")


if __name__ == "__main__":
    main()
