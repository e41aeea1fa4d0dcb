"""What must not change by accident."""
