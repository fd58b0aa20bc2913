import threading
from http.client import RemoteDisconnected
from urllib.error import HTTPError
from urllib.request import Request as Get
from urllib.request import urlopen

import pytest
from obstore import put
from obstore.store import S3Store

from tests.store.proxy import CONFLICT, CUT, LOST, SLOW_DOWN, STRIPPED, Fault, Proxy, Request


def _is_put(request: Request) -> bool:
    return request.kind in ("PUT", "PUT-IF")


def _put(proxy: Proxy, bucket: str, **headers: str) -> int:
    # moto checks no signature, and answers 403 to requests without one.
    signed = {
        "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, Signature=0"
    }
    named = signed | {name.replace("_", "-"): value for name, value in headers.items()}
    with urlopen(Get(f"{proxy.url}/{bucket}/key", b"body", named, method="PUT"), timeout=30) as answer:
        return answer.status


def _exists(bucket: str) -> bool:
    return bool(S3Store(bucket).list().collect())


def test_requests_are_counted_by_kind(proxy: Proxy, bucket: str) -> None:
    store = S3Store(bucket)
    put(store, "a b/ü", b"1", mode="create")
    put(store, "a b/ü", b"2")
    assert bytes(store.get("a b/ü").bytes()) == b"2"
    store.head("a b/ü")
    assert [entry["path"] for entry in store.list().collect()] == ["a b/ü"]
    assert proxy.counts() == {"PUT-IF": 1, "PUT": 1, "GET": 1, "HEAD": 1, "LIST": 1}
    assert [request.status for request in proxy.requests] == [200] * 5
    assert proxy.requests[0].key == f"{bucket}/a b/ü"


@pytest.mark.parametrize(
    ("fault", "error", "is_stored"),
    [
        (LOST, RemoteDisconnected, True),
        (CUT, RemoteDisconnected, False),
        (SLOW_DOWN, HTTPError, False),
        (CONFLICT, HTTPError, False),
    ],
    ids=["lost", "cut", "503", "409"],
)
def test_a_broken_request_is_carried_out_or_not(
    proxy: Proxy, bucket: str, fault: Fault, error: type[Exception], is_stored: bool
) -> None:
    with proxy.breaking(fault, _is_put) as broken:
        with pytest.raises(error) as raised:
            _put(proxy, bucket)
        assert len(broken) == 1
        if isinstance(raised.value, HTTPError):
            assert raised.value.code == fault.answer
            raised.value.close()
        assert _exists(bucket) is is_stored
        assert _put(proxy, bucket) == 200, "only the first request is broken"


def test_conditions_are_stripped(proxy: Proxy, bucket: str) -> None:
    assert _put(proxy, bucket, If_None_Match="*") == 200
    with pytest.raises(HTTPError) as raised:
        _put(proxy, bucket, If_None_Match="*")
    assert raised.value.code == 412
    raised.value.close()
    with proxy.breaking(STRIPPED, _is_put):
        assert _put(proxy, bucket, If_None_Match="*") == 200


def test_a_request_is_held_and_noticed(proxy: Proxy, bucket: str) -> None:
    hold = threading.Event()
    seen: list[str] = []
    fault = Fault(hold=hold, before=lambda: seen.append("before"), after=lambda: seen.append("after"))
    with proxy.breaking(fault, _is_put):
        writer = threading.Thread(target=_put, args=(proxy, bucket))
        writer.start()
        assert not _exists(bucket), "other requests go on"
        assert seen == []
        hold.set()
        writer.join(30)
        assert seen == ["before", "after"]
        assert _exists(bucket)
