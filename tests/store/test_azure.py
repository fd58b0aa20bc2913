"""The path of small sets in a container of Azure's store: Azurite, which speaks its protocol. Spark is refused there."""

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mergerepl.store.location import Location
from mergerepl.store.objects import ChangedError, storage_options
from mergerepl.store.storage import storage
from tests.store.order_tables import add, agent_rounds, command, edit, rows_of, write_orders

pytestmark = pytest.mark.slow

ACCOUNT = "devstoreaccount1"
# Azurite's own, in its manual.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
PORT = 10_000


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an empty container of an Azurite of the test's own (npm package azurite)."""
    if (azurite := shutil.which("azurite-blob")) is None:
        pytest.skip("needs azurite-blob on the PATH (npm install azurite)")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            pytest.skip(f"the emulator's port {PORT} is taken")
    words = (
        "--silent",
        "--skipApiVersionCheck",
        "--blobHost",
        "127.0.0.1",
        "--location",
        str(tmp_path / "azurite"),
    )
    process = subprocess.Popen([azurite, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for name, value in {
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
    }.items():
        monkeypatch.setenv(name, value)
    name = f"lake-{uuid4().hex[:12]}"
    try:
        make_container(name)
        yield name
    finally:
        process.kill()
        process.wait()


def make_container(name: str) -> None:
    """Create a container by a signed request; wait until the server listens."""
    ends = time.monotonic() + 60
    while True:
        now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = f"x-ms-date:{now}\nx-ms-version:2021-08-06\n"
        signed = f"PUT{chr(10) * 12}{headers}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        request = Request(f"http://127.0.0.1:{PORT}/{ACCOUNT}/{name}?restype=container", method="PUT")
        request.add_header("x-ms-date", now)
        request.add_header("x-ms-version", "2021-08-06")
        request.add_header("Authorization", f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}")
        try:
            with urlopen(request, timeout=30):
                return
        except URLError as error:
            if getattr(error, "code", None) is not None or time.monotonic() > ends:
                raise
            time.sleep(0.2)


def state(folder: Path, hq: Location, north: Location | Path) -> None:
    # The name that Spark has for the same place.
    named = f"abfss://{hq.bucket}@{ACCOUNT}.dfs.core.windows.net/{hq.prefix}"
    (folder / "mergerepl.yml").write_text(
        f"publication: sales\npublisher: {named}\narticles:\n  - {{name: orders, key: [id]}}\n"
        f"subscriptions:\n  - {{subscriber: {north}, name: north}}\n"
    )


@pytest.mark.parametrize("north", ["container", "folder"])
def test_small_sets_travel_through_a_container(
    container: str, tmp_path: Path, north: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hq = Location.of(f"az://{container}/hq")
    other = (
        Location.of(f"az://{container}/north") if north == "container" else Location.of(tmp_path / "north")
    )
    write_orders(hq)
    state(tmp_path, hq, other)

    def run(*words: str, code: int = 0) -> str:
        exit_code, shown, error = command(tmp_path, *words)
        assert exit_code == code, error
        return error if code else shown

    run("apply")
    edit(hq, ("qty=77", "id < 5"), ("delete", "id = 9"))
    edit(other, ("item='north'", "id = 4 or id > 17"))
    add(other, 100)
    run("sync")
    assert rows_of(hq) == rows_of(other)
    assert [row[1:] for row in rows_of(hq) if row[0] in (3, 4, 18, 100)] == [
        ("i3", 77),
        ("i4", 77),
        ("north", 3),
        ("i0", 0),
    ]
    assert "nothing to do" in run("sync")
    for line in ("status", "pending", "history", "conflicts list", "row orders --key id=4", "doctor"):
        assert run(*line.split()), line
    assert agent_rounds(tmp_path, 2)[1:] == [f"sync: sales with {other}: up 0, down +1, conflicts 0"]
    assert rows_of(hq) == rows_of(other)
    edit(hq, ("qty=78", "id < 5"))
    assert "needs Spark, which does not work there" in run("sync", "--engine", "spark", code=1)
    run("sync")
    assert rows_of(hq) == rows_of(other)


def test_one_of_many_writers_of_a_blob_is_first(container: str) -> None:
    at = Location.of(f"az://{container}/hq/object")
    found = storage(at)

    def is_first(number: int, tag: str | None) -> bool:
        data = f"{number} {uuid4()}".encode()
        try:
            found.put_if_absent(at, data) if tag is None else found.put_if_unchanged(at, data, tag)
        except (FileExistsError, ChangedError):
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for turn in range(20):
            stored = found.read(at)
            assert (stored is None) is (turn == 0)
            tags = [None if stored is None else stored[1]] * 8
            assert sum(pool.map(is_first, range(8), tags)) == 1


def test_a_session_that_was_cut_short_is_finished(
    container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hq, north = (Location.of(f"az://{container}/{name}") for name in ("hq", "north"))
    monkeypatch.chdir(tmp_path)
    write_orders(hq)
    state(tmp_path, hq, north)
    assert command(tmp_path, "apply")[0] == 0
    for number, point in enumerate(
        ("stage.before_manifest", "stage.after_manifest", "publisher.after_merge")
    ):
        edit(hq, (f"qty={number + 50}", "id < 5"))
        edit(north, (f"item='north {number}'", "id > 17"))
        with monkeypatch.context() as dying:
            dying.setenv("MERGEREPL_FAILPOINT", f"{point}=raise")
            assert command(tmp_path, "sync")[0] != 0
        code, _, error = command(tmp_path, "sync")
        assert code == 0, error
        assert rows_of(hq) == rows_of(north)
        assert [row[1:] for row in rows_of(hq) if row[0] in (0, 18)] == [
            ("i0", number + 50),
            (f"north {number}", 3),
        ]


def test_what_needs_spark_is_refused(container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hq = Location.of(f"az://{container}/hq")
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"id": pa.array(range(60_000), pa.int64()), "x": pa.array([float("nan")] * 60_000)})
    write_deltalake(str(hq / "orders"), rows, storage_options=storage_options(hq))
    state(tmp_path, hq, tmp_path / "north")
    code, _, error = command(tmp_path, "apply")
    assert (code, "needs Spark, which does not work there" in error) == (1, True), error
    assert not storage(hq).is_folder(hq / "_mergerepl")
