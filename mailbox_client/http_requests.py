"""The HTTP requests that an engine asks for, each a task of its own, and their answers as the engine's inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, assert_never

from mailbox_client.account import Account
from mailbox_client.engine_io import (
    AckAnswered,
    FetchToken,
    GetPage,
    Input,
    PostAck,
    PostSend,
    PullAnswered,
    RequestFailed,
    SendAnswered,
    TokenFailed,
    TokenGiven,
)
from mailbox_client.errors import ClientError, InstanceChanged, StopReason
from mailbox_client.settings import ClientSettings
from mailbox_client.transport_http import MailboxHttp
from protocol.errors import MailboxError

Request = FetchToken | GetPage | PostSend | PostAck


class Requests:
    """Runs requests until they are answered or abandoned. `give` gets exactly one input for each that is not abandoned.

    Request numbers never repeat in a process, so a late answer cannot be taken for another request's.
    """

    def __init__(
        self, http: MailboxHttp, account: Account, settings: ClientSettings, give: Callable[[Input], None]
    ) -> None:
        self._http = http
        self._account = account
        self._settings = settings
        self._give = give
        self._running: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(self, request: Request) -> None:
        number = request.request
        task = asyncio.create_task(self._work_of(request), name=f"mailbox-request-{number}")
        self._running[number] = task
        task.add_done_callback(lambda _task: self._running.pop(number, None))

    def abandon(self, number: int) -> None:
        """No answer is wanted any more. At the server the request may be carried out all the same."""
        task = self._running.pop(number, None)
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def abandon_all(self) -> None:
        for number in list(self._running):
            self.abandon(number)

    async def close(self) -> None:
        """Abandon everything and wait until it is gone."""
        self.abandon_all()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _work_of(self, request: Request) -> Coroutine[Any, Any, None]:
        match request:
            case FetchToken(number):
                return self._fetch_token(number)
            case GetPage():
                return self._get_page(request)
            case PostSend():
                return self._post_send(request)
            case PostAck():
                return self._post_ack(request)
            case _:
                assert_never(request)

    async def _fetch_token(self, request: int) -> None:
        try:
            token = await self._account.fetch_token(self._http)
        except MailboxError as error:
            self._give(TokenFailed(request, error))
        except InstanceChanged:
            self._give(TokenFailed(request, stop=StopReason.NOT_KNOWN))
        except ClientError:
            self._give(TokenFailed(request))
        else:
            now = token.server_now_ms
            self._give(TokenGiven(request, token.token, token.reauth_before - now, now))

    async def _get_page(self, page: GetPage) -> None:
        try:
            answer = await self._http.pull_mailbox(
                page.cursor, limit=self._settings.page_limit, wait_s=page.wait_s, until=page.until
            )
            self._give(PullAnswered(page.request, answer))
        except (MailboxError, ClientError) as error:
            self._failed(page.request, error)

    async def _post_send(self, post: PostSend) -> None:
        try:
            answer = await self._http.send(post.send.envelopes, client_message_id=post.send.cmid, echo=post.send.echo)
            self._give(SendAnswered(post.request, answer.duplicate, answer.results))
        except (MailboxError, ClientError) as error:
            self._failed(post.request, error)

    async def _post_ack(self, post: PostAck) -> None:
        try:
            await self._http.ack(post.mids)
            self._give(AckAnswered(post.request))
        except (MailboxError, ClientError) as error:
            self._failed(post.request, error)

    def _failed(self, request: int, error: Exception) -> None:
        self._give(RequestFailed(request, error if isinstance(error, MailboxError) else None))
