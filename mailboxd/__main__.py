"""`python -m mailboxd`: the same as the installed command."""

from mailboxd.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
