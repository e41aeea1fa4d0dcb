"""One task each: what a job of the outbox does."""
