"""Load, soak and comparison runs against a real server, every run judged by one history checker."""
