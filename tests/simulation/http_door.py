"""The HTTP door of the model server: the real bodies of requests and answers, as bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

from mailbox_client.engine_io import Page
from mailbox_client.http_answers import SendAnswer, Token, read_page, read_send_answer, read_token
from mailbox_client.http_refusals import understood
from mailbox_client.transport_http import envelope_map
from protocol import http_answers, http_shapes
from protocol.errors import MailboxError
from protocol.frames import Send
from protocol.http_values import BodyFormat, parse_body, render_body
from protocol.ids import DeviceId, MessageId
from tests.simulation.model_server import ModelServer

FORMAT = BodyFormat.MSGPACK


class Answer(NamedTuple):
    status: int
    body: bytes


def asked_to_send(send: Send) -> bytes:
    """The body of POST /v1/envelopes."""
    fields: dict[str, Any] = {"envelopes": [envelope_map(envelope) for envelope in send.envelopes]}
    return render_body(fields | {"client_message_id": send.cmid, "echo": send.echo}, FORMAT)


def asked_to_ack(mids: tuple[MessageId, ...]) -> bytes:
    """The body of POST /v1/mailbox/acks."""
    return render_body({"message_ids": list(mids)}, FORMAT)


class HttpDoor:
    """Each method serves one call at one moment; whatever is refused is a problem document."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def token(self, device: DeviceId) -> Answer:
        try:
            text, ends, reauth_before = self._server.make_token(device)
        except MailboxError as error:
            return _refused(error)
        expires_in_s = (ends - self._server.now_ms) // 1000
        return _good(http_answers.token(text, ends, expires_in_s, reauth_before), 201)

    def send(self, token: str, body: bytes) -> Answer:
        try:
            device, _ends = self._server.device_of(token)
            asked = http_shapes.submit_body(parse_body(body, FORMAT), None)
            assert asked.cmid is not None
            duplicate, results = self._server.send(device, Send(asked.cmid, asked.envelopes, asked.echo))
        except MailboxError as error:
            return _refused(error)
        return _good(http_answers.submitted(duplicate, results), 200 if duplicate else 201)

    def page(self, token: str, cursor: str | None, limit: int, until: str | None) -> Answer:
        try:
            device, _ends = self._server.device_of(token)
            page = self._server.pull(device, cursor, limit, until)
        except MailboxError as error:
            return _refused(error)
        return _good(http_answers.mailbox(*page), 200)

    def acks(self, token: str, body: bytes) -> Answer:
        try:
            device, _ends = self._server.device_of(token)
            mids = http_shapes.ack_ids(parse_body(body, FORMAT))
            self._server.ack(device, mids)
        except MailboxError as error:
            return _refused(error)
        return _good(http_answers.acked(len(mids)), 200)


# What the client reads in an answer; each raises MailboxError for a refusal.


def token_in(answer: Answer) -> Token:
    return read_token(understood(answer.status, answer.body, ""))


def page_in(answer: Answer) -> Page:
    return read_page(understood(answer.status, answer.body, ""))


def results_in(answer: Answer) -> SendAnswer:
    return read_send_answer(understood(answer.status, answer.body, ""))


def acked_in(answer: Answer) -> None:
    understood(answer.status, answer.body, "")


def _good(fields: dict[str, Any], status: int) -> Answer:
    return Answer(status, render_body(fields, FORMAT))


def _refused(error: MailboxError) -> Answer:
    return Answer(error.http_status, render_body(http_answers.problem(error, "request"), FORMAT))
