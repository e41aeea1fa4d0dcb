"""A deterministic world of clients on a model server: virtual clock, bad network, crashes (run by the tests here)."""
