"""A store that ignores conditions is refused before its first use, whichever library finds it out."""

import pytest

from mergerepl.delta.store_proof import PROOF, prove, require_proof
from mergerepl.errors import StoreError
from mergerepl.monitoring import doctor
from mergerepl.store.location import Location
from mergerepl.store.storage import storage
from tests.store.proxy import CONFLICT, STRIPPED, Fault, Proxy, Request


@pytest.fixture
def root(bucket: str) -> Location:
    return Location.of(f"s3://{bucket}/lake/hq")


def test_a_store_is_proved_once(root: Location, proxy: Proxy) -> None:
    require_proof(root)
    assert list(storage(root).files_below(root)) == [root / PROOF]
    assert len(proxy.requests) <= 30
    proxy.reset()
    require_proof(root)
    assert proxy.counts() == {"HEAD": 1}


@pytest.mark.parametrize(
    ("condition", "under", "says"),
    [
        ("if-none-match", "/object", "ignores If-None-Match .tried through obstore"),
        ("if-match", "/object", "ignores If-Match .tried through obstore"),
    ],
)
def test_a_store_that_ignores_a_condition_is_refused(
    root: Location, proxy: Proxy, condition: str, under: str, says: str
) -> None:
    def is_broken(request: Request) -> bool:
        return request.condition == condition and under in request.key

    with (
        proxy.breaking(STRIPPED, is_broken, times=99) as broken,
        pytest.raises(StoreError, match=says) as raised,
    ):
        require_proof(root)
    assert broken
    assert raised.value.exit_code == 1
    assert list(storage(root).files_below(root)) == [], (
        "nothing is left, and the store is tried again next time"
    )


def test_doctor_proves_the_store_of_a_replica(root: Location, proxy: Proxy) -> None:
    def checked() -> dict[str, doctor.Check]:
        return {check.name: check for check in doctor.checks([str(root)])}

    sound = checked()
    assert sound[f"storage {root}"].status is doctor.CheckStatus.OK
    assert "jars for S3" in sound
    with proxy.breaking(STRIPPED, lambda request: request.condition == "if-match", times=99):
        broken = checked()[f"storage {root}"]
    assert broken.status is doctor.CheckStatus.FAIL
    assert "ignores If-Match" in broken.detail


def test_a_store_that_cannot_renew_is_refused(root: Location, proxy: Proxy) -> None:
    with (
        proxy.breaking(Fault(answer=412), lambda request: request.condition == "if-match", times=99),
        pytest.raises(StoreError, match="locks could not be renewed"),
    ):
        prove(root)


def test_faults_that_pass_do_not_refute_a_store(root: Location, proxy: Proxy) -> None:
    with proxy.breaking(CONFLICT, lambda request: request.condition != "", times=2) as broken:
        require_proof(root)
    assert len(broken) == 2
