"""Which rows are sent: those whose last change the destination has not seen."""

import pytest
from pyspark.sql import SparkSession

from tests import phases
from tests.phases import Current

pytestmark = pytest.mark.spark

SENT = {
    "a change after the watermark": Current(generation=5, watermark=4),
    "a change far after the watermark": Current(generation=2**40, watermark=4),
    "the first change, from the beginning": Current(generation=1, watermark=0),
    "a change beside a generation that the destination has": Current(generation=6, watermark=4, known=(5, 7)),
}
NOT_SENT = {
    "a change at the watermark": Current(generation=4, watermark=4),
    "a change before the watermark": Current(generation=3, watermark=4),
    "a change of a generation that the destination has beyond its watermark": Current(
        5, watermark=4, known=(5,)
    ),
    "a change of one of several such generations": Current(6, watermark=4, known=(5, 6)),
}


@pytest.fixture(scope="module")
def enumerated(spark: SparkSession) -> set[str]:
    return phases.enumerated(spark, SENT | NOT_SENT)


@pytest.mark.parametrize("rule", SENT)
def test_it_is_sent(enumerated: set[str], rule: str) -> None:
    assert rule in enumerated


@pytest.mark.parametrize("rule", NOT_SENT)
def test_it_is_not_sent(enumerated: set[str], rule: str) -> None:
    assert rule not in enumerated
