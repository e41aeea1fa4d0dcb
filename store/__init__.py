"""All state: the only room that speaks SQL and Redis, and never frames."""
