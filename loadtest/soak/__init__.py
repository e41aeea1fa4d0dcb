"""A long run with Locust's users against a fresh server, and a verdict on what only time shows."""
