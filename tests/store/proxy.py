"""A proxy in front of a store's server: it counts requests, and breaks those that a rule names.

Crash points, request budgets and faults are tested with it. Each request goes to the server on a connection of its own.
"""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

SECRETS = ("test-key", "test-secret")
"""The credentials that the tests' store takes."""

CONDITIONS = ("if-match", "if-none-match")
ERROR_CODES = {
    400: "ExpiredToken",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    503: "SlowDown",
}


def environment(url: str) -> dict[str, str]:
    """Return the variables by which this process and its children find the store at an address."""
    key, secret = SECRETS
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
    }


@dataclass
class Request:
    """A request in the order of arrival; `key` is `bucket/key`. `status` is 0 until the server has answered."""

    number: int
    method: str
    key: str
    query: str
    condition: str = ""
    """The first header of `CONDITIONS` that it has."""
    status: int = 0

    @property
    def kind(self) -> str:
        """The method; LIST for a listing, PUT-IF for a conditional PUT."""
        if self.method == "GET" and ("list-type=" in self.query or "/" not in self.key):
            return "LIST"
        return "PUT-IF" if self.method == "PUT" and self.condition else self.method


@dataclass(frozen=True)
class Fault:
    """What happens to a request: `before` it is forwarded, `after` the server has carried it out."""

    answer: int = 0
    """The status of an error that the proxy answers itself; 0 forwards the request."""
    code: str = ""
    """The code of that error, by default that of `ERROR_CODES`."""
    is_cut: bool = False
    """True to close the connection instead of forwarding."""
    is_lost: bool = False
    """True to close the connection instead of passing on the server's answer."""
    is_stripped: bool = False
    """True to forward the request without its conditions."""
    delay: float = 0.0
    hold: threading.Event | None = None
    """The request is forwarded once this is set."""
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None


LOST, CUT, STRIPPED = Fault(is_lost=True), Fault(is_cut=True), Fault(is_stripped=True)
CONFLICT, SLOW_DOWN = Fault(answer=409), Fault(answer=503)
Rule = Callable[[Request], Fault | None]


class Proxy:
    """Serves `url` from a thread until `close`. `requests` holds all since the last `reset`."""

    def __init__(self, server: str) -> None:
        self._server = urlsplit(server)
        self.requests: list[Request] = []
        self.rule: Rule | None = None
        self._connections: set[object] = set()
        # A store checks a condition and writes in one step; moto lets another request pass between both.
        self._conditional = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        opened = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        )
        self._listener = opened.result()
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def reset(self) -> None:
        """Forget the requests and the rule."""
        self.requests, self.rule = [], None

    def counts(self) -> Counter[str]:
        """Return kind -> number of requests."""
        return Counter(request.kind for request in self.requests)

    @contextmanager
    def breaking(
        self, fault: Fault, when: Callable[[Request], bool], times: int = 1
    ) -> Iterator[list[Request]]:
        """Apply a fault to the first `times` requests that meet a condition; yield the list of those it broke."""
        broken: list[Request] = []

        def rule(request: Request) -> Fault | None:
            if len(broken) >= times or not when(request):
                return None
            broken.append(request)
            return fault

        self.rule, earlier = rule, self.rule
        try:
            yield broken
        finally:
            self.rule = earlier

    def close(self) -> None:
        """Stop serving."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio itself holds its tasks by weak references.
        self._connections.add(task := asyncio.current_task())
        with suppress(OSError, EOFError, asyncio.CancelledError):
            while await self._one(reader, writer):
                pass
        writer.close()
        self._connections.discard(task)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve the next request of a connection; return whether the connection stays open."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        method, target, _ = first.split(" ")
        headers = [
            (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)
        ]
        named = dict(headers)
        if named.get("expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, named)
        path, _, query = target.partition("?")
        condition = next((name for name in CONDITIONS if name in named), "")
        request = Request(len(self.requests) + 1, method, unquote(path).strip("/"), query, condition)
        self.requests.append(request)
        fault = (self.rule and self.rule(request)) or Fault()
        if fault.hold is not None:
            await asyncio.to_thread(fault.hold.wait)
        await asyncio.sleep(fault.delay)
        if fault.before is not None:
            await asyncio.to_thread(fault.before)
        if fault.is_cut:
            return False
        if fault.answer:
            request.status = fault.answer
            code = fault.code or ERROR_CODES[fault.answer]
            text = f"<Error><Code>{code}</Code><Message>proxy</Message></Error>"
            head = f"HTTP/1.1 {fault.answer} Error\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}"
            writer.write(f"{head}\r\n\r\n{'' if method == 'HEAD' else text}".encode())
            await writer.drain()
            return True
        dropped = {"expect", "connection", "transfer-encoding", "content-length"}
        dropped |= set(CONDITIONS) if fault.is_stripped else set()
        kept = [f"{name}: {value}" for name, value in headers if name not in dropped]
        text = "\r\n".join([first, *kept, f"content-length: {len(body)}", "connection: close", "", ""])
        message = text.encode("latin-1") + body
        if request.kind == "PUT-IF":
            async with self._conditional:
                answer = await self._ask(message)
        else:
            answer = await self._ask(message)
        request.status = int(answer.split(b" ", 2)[1])
        if fault.after is not None:
            await asyncio.to_thread(fault.after)
        if fault.is_lost:
            return False
        head, _, rest = answer.partition(b"\r\n\r\n")
        head = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head)
        writer.write(head + b"\r\n\r\n" + rest)
        await writer.drain()
        return method == "HEAD" or bool(re.search(rb"(?i)\r\n(content-length|transfer-encoding):", head))

    async def _ask(self, message: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._server.hostname, self._server.port)
        try:
            writer.write(message)
            return await reader.read()
        finally:
            writer.close()


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")
    return body
