"""The schema, one plain SQL file a step, and the runner that applies and rolls back the steps."""
