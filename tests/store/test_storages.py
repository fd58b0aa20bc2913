"""Control files: every case on a folder of this machine and in a bucket."""

import threading
from contextlib import suppress
from pathlib import Path
from urllib.request import Request as UrlRequest
from urllib.request import urlopen
from uuid import uuid4

import pytest

from mergerepl.errors import ConfigurationError, StoreError, StoreUnavailableError
from mergerepl.store.location import Location
from mergerepl.store.objects import ChangedError, storage_options
from mergerepl.store.rehearsal import REHEARSED, rehearsed
from mergerepl.store.storage import HALF_WRITTEN, files_in, put_text, read_text, storage
from tests.store.proxy import CONFLICT, CUT, LOST, SLOW_DOWN, Fault, Proxy, Request


@pytest.fixture
def stored(bucket: str) -> Location:
    """An empty place in a bucket."""
    return Location.of(f"s3://{bucket}/hq")


@pytest.fixture(params=["folder", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """An empty place of each kind."""
    place: Location = (
        Location.of(tmp_path) if request.param == "folder" else request.getfixturevalue("stored")
    )
    return place


def test_a_file_is_replaced_whole_and_removed(root):
    at = root / "_mergerepl" / "plan.json"
    assert read_text(at) is storage(at).read(at) is None
    assert not storage(at).exists(at)
    put_text(at, "one")
    one = storage(at).read(at)
    put_text(at, "zwölf")
    assert read_text(at) == "zwölf"
    assert storage(at).read(at)[1] != one[1]
    assert storage(at).exists(at)
    assert storage(at).list_from(at.parent) == ["plan.json"]
    assert not storage(at).is_folder(at)
    assert storage(at).is_folder(at.parent)
    storage(at).delete(at, at)
    assert read_text(at) is None


@pytest.mark.parametrize("name", ["a b", "a+b=1", "Île/ß", "a,b;c&d", "'q'", "~x", "a:b@c"])
def test_any_name_may_be_stored(root, name):
    at = root.join("t", *name.split("/"))
    put_text(at, name)
    assert read_text(at) == name
    assert storage(root).list_from(root / "t") == [name.split("/")[0]]
    storage(root).delete(at)
    assert not storage(root).exists(at)


def test_names_are_listed_in_order_behind_a_name(root):
    for name in ("3.json", "1.json", "2.json", "9.json.tmp", "2.json.d/part"):
        put_text(root / name, "x")
    assert storage(root).list_from(root) == ["1.json", "2.json", "2.json.d", "3.json", "9.json.tmp"]
    assert storage(root).list_from(root, after="2.json") == ["2.json.d", "3.json", "9.json.tmp"]
    assert storage(root).list_from(root, after="2.json.d") == ["3.json", "9.json.tmp"]
    assert files_in(root, HALF_WRITTEN) == [root / "9.json.tmp"]
    assert storage(root).list_from(root / "none") == []


def test_a_folder_is_removed_with_its_contents(root):
    for name in ("a/1", "a/b/2", "ab/3"):
        put_text(root / name, "x")
    storage(root).delete_tree(root / "a")
    assert storage(root).list_from(root) == ["ab"]
    storage(root).delete_tree(root / "a")


def test_a_file_is_made_once(root):
    put_text(root / "other", "")
    at = root / "0.json"
    tag = storage(at).put_if_absent(at, b"first")
    with pytest.raises(FileExistsError):
        storage(at).put_if_absent(at, b"second")
    assert storage(at).read(at) == (b"first", tag)


def test_a_file_is_replaced_while_it_is_unchanged(root):
    at = root / "register"
    put_text(root / "other", "")
    with pytest.raises(ChangedError):
        storage(at).put_if_unchanged(at, b"one", "any")
    assert storage(at).read(at) is None
    first = storage(at).put_if_absent(at, b"one")
    second = storage(at).put_if_unchanged(at, b"two", first)
    with pytest.raises(ChangedError):
        storage(at).put_if_unchanged(at, b"three", first)
    assert storage(at).read(at) == (b"two", second)
    assert storage(at).read(at)[1] == second


def test_one_of_many_writers_makes_and_one_replaces_a_file(root):
    at = root / "register"
    put_text(root / "other", "")

    def winners(write):
        won = []

        def run(body):
            with suppress(FileExistsError, ChangedError):
                won.append((body, write(body)))

        threads = [threading.Thread(target=run, args=(f"{write.__name__} {i}".encode(),)) for i in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(won) == 1
        assert storage(at).read(at) == won[0]
        return won[0][1]

    def make(body):
        return storage(at).put_if_absent(at, body)

    tag = winners(make)

    def replace(body):
        return storage(at).put_if_unchanged(at, body, tag)

    winners(replace)


def test_a_rehearsal_ends_at_the_first_write(root):
    at = root / "file"
    for write in (
        lambda: storage(at).put(at, b"x"),
        lambda: storage(at).put_if_absent(at, b"x"),
        lambda: storage(at).put_if_unchanged(at, b"x", "tag"),
    ):
        assert rehearsed(True, write) is REHEARSED
    assert rehearsed(True, lambda: storage(at).delete(at)) is None
    assert rehearsed(True, lambda: storage(at).delete_tree(root / "none")) is None
    assert storage(at).read(at) is None
    put_text(at, "x")
    assert rehearsed(True, lambda: storage(at).delete(at)) is REHEARSED
    assert storage(at).exists(at)


def is_put(request: Request) -> bool:
    return request.method == "PUT"


@pytest.mark.parametrize("fault", [LOST, CUT, SLOW_DOWN, CONFLICT], ids=["lost", "cut", "503", "409"])
def test_a_conditional_put_reads_back_what_it_wrote(proxy: Proxy, stored, fault: Fault):
    at = stored / "register"
    with proxy.breaking(fault, is_put) as broken:
        tag = storage(at).put_if_absent(at, b"one")
    assert len(broken) == 1
    assert storage(at).read(at) == (b"one", tag)
    with proxy.breaking(fault, is_put) as broken:
        tag = storage(at).put_if_unchanged(at, b"two", tag)
    assert len(broken) == 1
    assert storage(at).read(at) == (b"two", tag)


def test_a_lost_answer_is_no_success_if_another_writer_followed(proxy: Proxy, moto_url, stored):
    at = stored / "register"

    def overwrite() -> None:
        # Past the proxy, which waits for this call.
        headers = {"Content-Type": "application/octet-stream", "Authorization": "AWS any:any"}
        url = f"{moto_url}/{at.bucket}/{at.prefix}"
        urlopen(UrlRequest(url, data=uuid4().bytes, headers=headers, method="PUT"), timeout=30).close()

    fault = Fault(is_lost=True, after=overwrite)
    with proxy.breaking(fault, is_put), pytest.raises(FileExistsError):
        storage(at).put_if_absent(at, b"one")
    tag = storage(at).read(at)[1]
    with proxy.breaking(fault, is_put), pytest.raises(ChangedError):
        storage(at).put_if_unchanged(at, b"two", tag)
    assert storage(at).read(at)[1] != tag


def test_a_conditional_put_without_an_outcome_is_transient(proxy: Proxy, stored):
    at = stored / "register"
    with (
        proxy.breaking(CONFLICT, is_put, times=1000),
        pytest.raises(StoreUnavailableError, match="ConditionalRequestConflict") as raised,
    ):
        storage(at).put_if_absent(at, b"one")
    assert raised.value.exit_code == 3
    assert storage(at).read(at) is None


DENIED = [
    (Fault(answer=403), 1, r"access was denied \((AccessDenied|403 Forbidden)\). Check the credentials"),
    (
        Fault(answer=403, code="InvalidAccessKeyId"),
        1,
        r"access was denied \((InvalidAccessKeyId|403 Forbidden)\)",
    ),
    (Fault(answer=403, code="RequestTimeTooSkewed"), 1, "the clock of this machine is not that of the store"),
    (
        Fault(answer=400),
        3,
        "the credentials have expired \\(ExpiredToken\\). Export new ones, then run again",
    ),
]


@pytest.mark.parametrize(("fault", "code", "says"), DENIED)
def test_an_answer_about_rights_is_never_that_an_object_is_absent(proxy: Proxy, stored, fault, code, says):
    at = stored / "register"
    tag = storage(at).put_if_absent(at, b"one")
    uses = [
        lambda: storage(at).read(at),
        lambda: storage(at).list_from(at.parent),
        lambda: storage(at).is_folder(at.parent),
        lambda: storage(at).put(at, b"two"),
        lambda: storage(at).put_if_unchanged(at, b"two", tag),
        lambda: storage(at).delete(at),
    ]
    if not fault.code and code == 1:
        # An answer to HEAD has no code.
        uses += [lambda: storage(at).exists(at), lambda: storage(at).facts(at)]
    for use in uses:
        with proxy.breaking(fault, lambda _: True, times=9), pytest.raises(StoreError, match=says) as raised:
            use()
        assert raised.value.exit_code == code
    assert storage(at).read(at) == (b"one", tag)


def test_a_missing_bucket_is_named(proxy: Proxy):
    at = Location.of("s3://no-such-bucket/hq/file")
    for use in (
        lambda: storage(at).read(at),
        lambda: storage(at).put(at, b"x"),
        lambda: storage(at).put_if_absent(at, b"x"),
        lambda: storage(at).list_from(at.parent),
    ):
        with pytest.raises(StoreError, match="Bucket 'no-such-bucket' does not exist") as raised:
            use()
        assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [("AWS_PROFILE", "profiles are not read"), ("AWS_S3_ALLOW_UNSAFE_RENAME", "could overwrite each other")],
)
def test_settings_that_cannot_be_followed_are_refused(proxy: Proxy, monkeypatch, name, problem):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv(name, "true")
    with pytest.raises(ConfigurationError, match=problem):
        storage_options(Location.of("s3://lake/hq"))
    assert storage_options(Location.of("/lake/hq")) == {}


def test_options_hold_no_credentials(proxy: Proxy):
    options = storage_options(Location.of("s3://lake/hq"))
    assert options["AWS_ENDPOINT_URL"] == proxy.url
    assert not any("test-" in value for value in options.values())
