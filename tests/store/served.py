"""The store of tests in a process of its own: a query of delta-rs does not let other threads of its process work."""

import multiprocessing
import os
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import Request as Sent
from urllib.request import urlopen

from tests.store.proxy import LOST, Fault, Proxy, Request

FORKED = multiprocessing.get_context("spawn")

REFUSED = Fault(answer=403)
"""The answer to each request of a process that is dead for the store. Nobody repeats a request that is refused."""


class _Control:
    """What the other process asks of the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy, self.met = proxy, 0

    def count(self) -> int:
        return len(self.proxy.requests)

    def sent(self, begun: int) -> list[tuple[str, str]]:
        """Return kind and key of the requests after the first `begun`."""
        return [
            (each.kind, each.key if each.kind != "LIST" else each.query)
            for each in self.proxy.requests[begun:]
        ]

    def die(self, number: int, is_stored: bool) -> None:
        """Let no request from the n-th on reach the store; `is_stored`: from the one after it on."""
        begun, self.met = len(self.proxy.requests), 0

        def rule(request: Request) -> Fault | None:
            if request.number - begun < number:
                return None
            self.met += 1
            return LOST if is_stored and self.met == 1 else REFUSED

        self.proxy.rule = rule

    def lose(self, part: str, times: int) -> None:
        """Lose the answers to the first PUTs whose key has a part."""
        self.met = 0

        def rule(request: Request) -> Fault | None:
            if request.method != "PUT" or part not in request.key or self.met >= times:
                return None
            self.met += 1
            return LOST

        self.proxy.rule = rule

    def clear(self) -> int:
        """Forget the rule; return how many requests it met."""
        self.proxy.rule = None
        return self.met


def _serve(channel: Any) -> None:
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = Proxy("http://{}:{}".format(*server.get_host_and_port()))
    control = _Control(proxy)
    channel.send(proxy.url)
    while (asked := channel.recv()) is not None:
        name, *terms = asked
        channel.send(getattr(control, name)(*terms))


class BrokenStore:
    """A store whose requests are broken on purpose."""

    def ask(self, name: str, *terms: Any) -> Any:
        """Let the proxy do what a method of `_Control` says."""
        raise NotImplementedError

    def died(self, work: Callable[[], object], number: int, *, is_stored: bool) -> bool:
        """Do work of which no request from the n-th on reaches the store; False if it sent fewer."""
        self.ask("die", number, is_stored)
        try:
            work()
        except Exception:
            assert self.ask("clear")
            return True
        return bool(self.ask("clear"))

    def drawn_points(self, work: Callable[[], object], drawn: int) -> Iterator[tuple[int, bool]]:
        """Do work once, and yield drawn requests of it, and whether the store carries them out."""
        begun = self.ask("count")
        work()
        count = self.ask("count") - begun
        draw = random.Random(os.environ.get("MERGEREPL_TEST_SEED", "0"))
        for _ in range(drawn):
            yield draw.randrange(1, count), draw.random() < 0.5


class ServedHere(BrokenStore):
    """The store behind a proxy of this process."""

    def __init__(self, proxy: Proxy) -> None:
        self._control = _Control(proxy)

    def ask(self, name: str, *terms: Any) -> Any:
        return getattr(self._control, name)(*terms)


class Served(BrokenStore):
    """A store in another process, with the proxy before it."""

    def __init__(self) -> None:
        self._channel, other = FORKED.Pipe()
        self._process = FORKED.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        self.url: str = self._channel.recv()

    def ask(self, name: str, *terms: Any) -> Any:
        self._channel.send((name, *terms))
        return self._channel.recv()

    def new_bucket(self) -> str:
        name = f"lake-{uuid.uuid4().hex[:12]}"
        with urlopen(Sent(f"{self.url}/{name}", method="PUT"), timeout=30):
            return name

    def close(self) -> None:
        self._channel.send(None)
        self._process.join(30)
