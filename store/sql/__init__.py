"""SQL statements, one file a topic."""
