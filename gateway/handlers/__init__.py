"""One request kind each, used by both doors."""
