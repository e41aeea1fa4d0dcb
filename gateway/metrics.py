"""What a gateway counts. Nothing here is labelled by device or address."""

from __future__ import annotations

from runtime.metrics import Metrics


class Tally:
    """Counts of the hot path as plain numbers: a Prometheus counter takes a lock, once a message is too often."""

    __slots__ = ("acks", "from_mailbox", "from_memory", "sends")

    def __init__(self) -> None:
        self.sends = 0
        self.acks = 0
        self.from_memory = 0
        self.from_mailbox = 0


class GatewayMetrics(Metrics):
    """The metrics of one gateway process, made once."""

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()
        self.connections = self.gauge("connections", "Open connections, WebSocket and HTTP.")
        self.websockets = self.gauge("websockets", "Open WebSocket connections, those before HELLO included.")
        self.sessions = self.gauge("sessions", "Devices with a live session here.")
        self.refused = self.counter(
            "connections_refused", "Connections refused before a WebSocket existed.", ["reason"]
        )
        self.tls_reloads = self.counter("tls_reloads", "Times the TLS certificate was read anew (SIGHUP).", ["outcome"])
        self.closes = self.counter("websocket_closes", "Close frames sent, by close code.", ["code"])
        self.errors = self.counter("errors", "Errors told to clients, by code.", ["code"])
        self.hellos = self.counter("hellos", "HELLOs judged.", ["outcome"])
        self.takeovers = self.counter("takeovers", "Sessions that replaced another one.")
        self.sends = self.counter("sends", "SENDs committed, over both doors.")
        self.acks = self.counter("acks", "Message ids acked, over both doors.")
        self.pushed_from_memory = self.counter("entries_pushed_from_memory", "Entries pushed right after their commit.")
        self.pushed_from_mailbox = self.counter("entries_pushed_from_mailbox", "Entries pushed after a read.")
        self.wakes_in = self.counter("wakes_received", "Wakes heard from other processes.", ["kind"])
        self.wakes_dropped = self.counter("wakes_dropped", "Wakes that did not get through to Redis.")
        self.canary_age = self.gauge("wake_canary_age_seconds", "Since this gateway last heard its own wake.")
        self.redis_reachable = self.gauge("redis_reachable", "1 while wakes go out and come back.")
        self.subscriber_restarts = self.counter("wake_subscriber_reconnects", "Times the subscription was made anew.")
        self.found_by_sweep = self.counter(
            "entries_found_by_sweep", "Sessions behind their mailbox, found by the sweep."
        )
        self.inbound_bytes = self.gauge("inbound_bytes", "Bytes of requests in hand, partial frames included.")
        self.loop_restarts = self.counter("loop_restarts", "Loops that failed and were started again.", ["loop"])

    def take_tally(self) -> None:
        """Move the hot path's counts into the counters; called about once a second."""
        tally = self.tally
        self.sends.inc(tally.sends)
        self.acks.inc(tally.acks)
        self.pushed_from_memory.inc(tally.from_memory)
        self.pushed_from_mailbox.inc(tally.from_mailbox)
        tally.sends = tally.acks = tally.from_memory = tally.from_mailbox = 0
