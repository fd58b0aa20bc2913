"""A store for tests: moto, which speaks the protocol of S3, behind the proxy. One server per worker, a bucket per test."""

import logging
import uuid
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest

from tests.store.proxy import Proxy, environment


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """The address of this worker's moto."""
    from moto.server import ThreadedMotoServer

    # Werkzeug logs each request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def _proxy(moto_url: str) -> Iterator[Proxy]:
    proxy = Proxy(moto_url)
    yield proxy
    proxy.close()


@pytest.fixture
def proxy(_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """The proxy without requests and rules; the environment has its address and credentials that moto takes."""
    for name, value in environment(_proxy.url).items():
        monkeypatch.setenv(name, value)
    _proxy.reset()
    return _proxy


@pytest.fixture
def bucket(proxy: Proxy) -> str:
    """The name of an empty bucket of the test's own."""
    name = f"lake-{uuid.uuid4().hex[:12]}"
    with urlopen(Request(f"{proxy.url}/{name}", method="PUT"), timeout=30):
        proxy.reset()
    return name
