"""What is raised when the engine's JVM is gone: the same, whatever py4j and pyspark raise (a gateway that hangs up)."""

import socket
import threading
from collections.abc import Iterator

import pytest
from delta import exceptions
from deltalake.exceptions import TableNotFoundError
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from mergerepl.calls import Caller, methods_of_caller
from mergerepl.errors import CommitConflictError, EngineLostError, StoreError
from mergerepl.model.progress import NoProgress
from mergerepl.publish.steps import Step, carry_out
from mergerepl.spark.callers import keeps_callers_session
from mergerepl.spark.plain import plain_errors


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Iterator[JavaGateway]:
    """Connect pyspark to a gateway that hangs up on everyone, as the sockets of a killed JVM do."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=server.getsockname()[1]))
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        yield gateway


@pytest.mark.parametrize(
    "raised",
    [
        Py4JError("An error occurred while calling o2640.conf"),
        Py4JError("org.apache.spark.sql.functions does not exist in the JVM"),
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
        PySparkException("Exception thrown in awaitResult"),
        exceptions.ConcurrentAppendException("Files were added by a concurrent update"),
    ],
    ids=lambda raised: f"{type(raised).__name__}-{str(raised)[:20]}",
)
@pytest.mark.usefixtures("gone")
def test_whatever_is_raised_once_the_engine_is_gone_says_that_it_ended(raised: Exception) -> None:
    with (
        pytest.raises(EngineLostError, match=r"The Spark engine ended while testing, for lack of memory"),
        plain_errors("testing"),
    ):
        raise raised


@pytest.mark.parametrize("kind", [getattr(exceptions, name) for name in exceptions.__all__])
def test_a_commit_that_another_writer_won_may_be_tried_again(kind: type[PySparkException]) -> None:
    with (
        pytest.raises(CommitConflictError, match="Another writer won a commit while testing"),
        plain_errors("testing"),
    ):
        raise kind("a concurrent MERGE")


def test_what_a_call_of_a_gone_engine_raises_says_that_it_ended(gone: JavaGateway) -> None:
    with pytest.raises(EngineLostError, match="The Spark engine ended"), plain_errors("testing"):
        gone.jvm.System.nanoTime()


IN_DELTA_RS = (
    "Generic LocalFileSystem error\n          \x1b[31m↳\x1b[0m Unable to copy data to file\n"
    "           \x1b[31m↳\x1b[0m {} (os error {})\n"
)


def test_an_error_of_delta_rs_is_named_to_its_last_cause() -> None:
    said = "Generic LocalFileSystem error: Unable to copy data to file: Permission denied"
    with pytest.raises(StoreError, match=said), plain_errors("testing"):
        raise OSError(IN_DELTA_RS.format("Permission denied", 13))


@keeps_callers_session
def fail(error: Exception) -> None:
    raise error


@methods_of_caller
class Place(Caller):
    def fail(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize(
    "full",
    [OSError(28, "No space left on device"), OSError(IN_DELTA_RS.format("No space left on device", 28))],
)
def test_a_full_disk_is_named_by_every_public_call(full: Exception) -> None:
    other = OSError(IN_DELTA_RS.format("Permission denied", 13))
    for call in (fail, Place(None, 0).fail):
        with pytest.raises(StoreError, match=r"No space left on device\. Make room there, then run"):
            call(full)
        with pytest.raises(OSError, match="Permission denied"):
            call(other)


@pytest.mark.parametrize("raised", [PermissionError(13, "Permission denied"), TableNotFoundError("no log")])
@pytest.mark.usefixtures("gone")
def test_errors_of_files_have_nothing_to_do_with_the_engine(raised: Exception) -> None:
    with pytest.raises(StoreError, match="A file could not be read or written"), plain_errors("testing"):
        raise raised


def test_62_a_stack_that_is_too_small_for_a_wide_table_says_how_to_get_a_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    with pytest.raises(StoreError, match=r"very many columns .*-Xss16m"), plain_errors("testing"):
        raise PySparkException("An error occurred: java.lang.StackOverflowError")


def test_rows_that_ended_with_their_executors_are_made_again_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    with (
        pytest.raises(EngineLostError, match="Executors of the Spark cluster ended"),
        plain_errors("testing"),
    ):
        raise PySparkException("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_380_0 not found!")


def test_a_file_that_java_cannot_open_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    file = "/lake/orders/part-1.parquet"
    says = rf"'{file}' could not be opened while testing: Too many open files\. Check"
    with pytest.raises(StoreError, match=says), plain_errors("testing"):
        raise PySparkException(
            "[FAILED_READ_FILE.FILE_NOT_EXIST] File does not exist.\n"
            f"Caused by: java.io.FileNotFoundException: {file} (Too many open files)\n\t... 1 more"
        )


def test_a_step_of_apply_that_fails_is_named_and_the_last() -> None:
    def fail(done: list[str]) -> None:
        raise OSError(28, "No space left on device")

    done: list[str] = []
    steps = [
        Step("publish", "orders", "", fail),
        Step("record", "sales", "", lambda done: done.append("record")),
    ]
    says = "while step 'publish orders' was carried out: .*No space left.* What was done before stays done"
    with pytest.raises(StoreError, match=says):
        carry_out(steps, done, NoProgress())
    assert done == []
