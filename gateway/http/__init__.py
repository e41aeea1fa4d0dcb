"""The plumbing of the HTTP door: media types, bodies, problems, headers. What a request does is in gateway/handlers."""
