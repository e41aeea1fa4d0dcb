"""What a worker shows of itself."""

from __future__ import annotations

from runtime.metrics import Metrics

_PUSH_DELAY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class WorkerMetrics:
    """One object for all loops, made once by `worker.app`."""

    def __init__(self, metrics: Metrics) -> None:
        counter, gauge, histogram = metrics.counter, metrics.gauge, metrics.histogram
        # Dispatcher and outbox.
        self.intents_completed = counter("outbox_completed", "Wake intents ended, by reason.", ["reason"])
        self.intents_put_off = counter("outbox_put_off", "Due intents put off: online, or pushed a moment ago.")
        self.published = counter("outbox_published", "Events handed to the queue.", ["task"])
        self.publish_failures = counter("outbox_publish_failures", "Times that the queue took nothing.")
        self.outbox_depth = gauge("outbox_events", "Open and dead events.", ["state"])
        self.outbox_due = gauge("outbox_due_events", "Events whose time has come and that nobody has taken.")
        self.outbox_due_age = gauge("outbox_oldest_due_seconds", "How long the oldest of them has been due.")
        self.unknown_tasks = gauge("outbox_unknown_task_events", "Events of a newer release that wait for its worker.")
        self.taken_back = counter("outbox_taken_back", "Published events that came back.", ["cause"])
        # Queue and jobs.
        self.queue_messages = gauge("queue_messages", "Messages in the stream: waiting or handed out.")
        self.queue_handed_out = gauge("queue_pending_messages", "Messages handed out and not yet settled.")
        self.queue_lost = counter("queue_lost", "Times that the stream or its group was gone.")
        self.jobs = counter("jobs", "Jobs by how they ended.", ["task", "outcome"])
        self.job_attempts = counter(
            "job_attempts", "Jobs begun: a first time, or again after a failure.", ["task", "kind"]
        )
        self.jobs_in_hand = gauge("jobs_in_hand", "Jobs that run now.")
        self.dead_letters = counter("dead_letters", "Events put away as poison.", ["task"])
        # Push.
        self.pushes = counter("pushes", "Pushes by provider and outcome.", ["provider", "outcome"])
        self.push_seconds = histogram(
            "push_seconds", "How long a provider took to answer.", ["provider"], buckets=_PUSH_DELAY_BUCKETS
        )
        self.prunes_held = gauge(
            "push_prunes_held", "1 while a provider fails for so many that no route is pruned.", ["provider"]
        )
        self.provider_open = gauge(
            "push_provider_paused", "Targets of a provider that are left alone for a while.", ["provider"]
        )
        self.resealed = counter("push_routes_resealed", "Push routes sealed anew after a rotation of their key.")
        self.seals_broken = gauge("push_routes_unopened", "Push routes of a superseded key that do not open.")
        # Clean-up and repair.
        self.cleaned = counter("cleaned_rows", "Rows removed.", ["table"])
        self.overdue_age = gauge(
            "cleanup_oldest_overdue_seconds", "Age of the oldest row that should be gone.", ["table"]
        )
        self.clock_apart = gauge("clock_apart_seconds", "The database's clock minus this process's.")
        self.expiry_stopped = gauge("expiry_stopped", "1 while expiry is stopped because the clocks are too far apart.")
        self.counter_drift = counter("counter_drift", "Mailboxes whose counters differed from their rows. Must stay 0.")
        self.wake_drift = counter("wake_open_drift", "Mailboxes whose wake_open differed from the outbox. Must stay 0.")
        self.loop_failures = counter("worker_loop_failures", "Loops started again after a failure.", ["loop"])
