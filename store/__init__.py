"""All durable state. Alone speaks SQL and Redis; knows no frame type numbers, sockets or doors."""
