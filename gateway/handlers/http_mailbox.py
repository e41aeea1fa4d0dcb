"""GET /v1/mailbox, GET /v1/mailbox/status, POST /v1/mailbox/acks: the mailbox for those without a WebSocket."""

from __future__ import annotations

from typing import NamedTuple

from gateway.http.answers import Answer
from gateway.http.exchange import Exchange
from gateway.services import GatewayServices
from protocol import http_answers, http_shapes
from protocol.cursor import CursorPosition, DeviceCursors
from protocol.errors import ErrorCode, MailboxError
from protocol.http_shapes import MailboxQuery
from protocol.http_values import bad_request
from protocol.ids import DeviceId
from protocol.limits import BATCH_BYTES_MAX
from runtime.doorbell import Doorbell
from store.records import AckRequest, Page, ReadRequest


class _Walk(NamedTuple):
    """Where the caller stands and how far it wants to get."""

    cursors: DeviceCursors
    start: CursorPosition | None
    until: CursorPosition | None


async def pull(exchange: Exchange) -> Answer:
    """A page of un-acked entries. Deletes nothing; with `wait_s` it waits, but only when there is nothing."""
    services, device = exchange.services, exchange.device
    query = http_shapes.mailbox_query(_single_values(exchange))
    await services.auth.require_active(device)
    walk = _open(services, device, query)
    if query.wait_s:
        # Waiting starts before the first read, so that nothing committed in between goes unnoticed.
        with services.waiters.wait_for(device) as doorbell, exchange.told_when_gone(doorbell.ring):
            page = await _read(exchange, walk, query, doorbell)
    else:
        page = await _read(exchange, walk, query, None)
    await services.sessions.contact(device)
    position = page.entries[-1].position if page.more else page.head
    now_ms = services.database_time.now_ms()
    return Answer(
        http_answers.mailbox(
            [positioned.entry for positioned in page.entries],
            walk.cursors.seal(position, now_ms, page.epoch),
            page.more,
            walk.cursors.seal(page.head, now_ms, page.epoch),
            not page.more if walk.until is None else position >= walk.until.position,
        )
    )


async def status(exchange: Exchange) -> Answer:
    """Count, bytes and age of what waits, echoes not counted."""
    services = exchange.services
    await services.auth.require_active(exchange.device)
    return Answer(http_answers.mailbox_status(*await services.reader.status(exchange.device)))


async def ack(exchange: Exchange) -> Answer:
    """`acked` for every well-formed id, also when repeated, foreign or gone; needs no Idempotency-Key."""
    services, device = exchange.services, exchange.device
    exchange.idempotency_key()
    message_ids = http_shapes.ack_ids(await exchange.fields())
    await services.auth.require_active(device)
    await services.acks.ack(AckRequest(device, message_ids), session=exchange.order)
    services.delivery.acked(device, message_ids)
    services.metrics.acks.inc(len(message_ids))
    return Answer(http_answers.acked(len(message_ids)))


def _single_values(exchange: Exchange) -> dict[str, str]:
    query = exchange.request.query
    for name in ("cursor", "limit", "wait_s", "until"):
        if len(query.getall(name, [])) > 1:
            raise bad_request(f"{name} is given more than once")
    return dict(query)


def _open(services: GatewayServices, device: DeviceId, query: MailboxQuery) -> _Walk:
    cursors = services.cursors.for_device(services.instance_id, device)
    now_ms = services.database_time.now_ms()
    return _Walk(
        cursors,
        None if query.cursor is None else cursors.open(query.cursor, now_ms),
        None if query.until is None else cursors.open(query.until, now_ms),
    )


async def _read(exchange: Exchange, walk: _Walk, query: MailboxQuery, doorbell: Doorbell | None) -> Page:
    """The first page with something on it, or an empty one when the time is up or this process drains."""
    services = exchange.services
    after = 0 if walk.start is None else walk.start.position
    request = ReadRequest(exchange.device, after, query.limit, BATCH_BYTES_MAX)
    deadline = services.clock.monotonic() + query.wait_s
    while True:
        page = await services.reader.read(request, session=exchange.order)
        for given in (walk.start, walk.until):
            # A position of another history says nothing here, and none can lie above the head.
            if given is not None and (given.epoch != page.epoch or given.position > page.head):
                raise MailboxError(ErrorCode.CURSOR_INVALID)
        left_s = deadline - services.clock.monotonic()
        if page.entries or doorbell is None or left_s <= 0 or services.waiters.released or exchange.client_is_gone:
            return page
        # A wake may be lost: look again as often as the sweep looks for sessions.
        sweep_s = services.config.sweep_s if services.wake.reachable else services.config.sweep_without_redis_s
        await doorbell.wait(at_most_seconds=min(left_s, sweep_s))
        await services.auth.require_active(exchange.device)
