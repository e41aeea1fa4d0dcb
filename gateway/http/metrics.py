"""What the HTTP door counts: by route and status, never by device or address."""

from __future__ import annotations

from runtime.metrics import Metrics


class HttpMetrics:
    """Made once a process."""

    def __init__(self, metrics: Metrics) -> None:
        self._requests = metrics.counter("http_requests", "HTTP requests answered.", ["route", "status"])
        self._seconds = metrics.histogram("http_request_seconds", "From head to answer, waiting included.", ["route"])

    def answered(self, route: str, status: int, seconds: float) -> None:
        """`route`: the path as the table writes it, so that no id becomes a label."""
        self._requests.labels(route=route, status=str(status)).inc()
        self._seconds.labels(route=route).observe(seconds)
