"""The fault kit: named faults against real processes under traffic, every one of them judged (docs/faults.md)."""
