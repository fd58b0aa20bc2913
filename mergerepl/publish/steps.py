"""The steps of `apply`, for merge and transactional publications: all are checked, then each is carried out.

No record marks an interrupted step. The next `apply` reads the stored state and plans the steps that it still lacks.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mergerepl.errors import ConfigurationError, EngineLostError, StoreError
from mergerepl.failpoints import failpoint
from mergerepl.model.progress import Progress
from mergerepl.model.results import PlanStep

PURPOSE = "mergerepl apply"
CHECKING = "Checking the publication"

_LIBRARIES = frozenset({"pyspark", "py4j", "delta", "deltalake", "_internal"})

RunT = TypeVar("RunT")


@dataclass(frozen=True)
class Step(Generic[RunT]):
    """One step: its line in the plan, and the functions that check and run it in one run of `apply`.

    `check` refuses by the rows of its tables: all steps are checked before the first one runs.
    """

    action: str
    object: str
    detail: str
    run: Callable[[RunT], Any]
    check: Callable[[RunT], Any] | None = None
    removes_rows: bool = False

    @property
    def plan(self) -> PlanStep:
        """The line in the plan."""
        return PlanStep(self.action, self.object, self.detail, self.removes_rows)


def check_steps(steps: Sequence[Step[RunT]], run: RunT) -> None:
    """Check all steps, before one of them is carried out."""
    for step in steps:
        if step.check is not None:
            step.check(run)


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turn errors of Spark, delta-rs or the file system into an error of ours."""
    try:
        yield
    except Exception as error:
        library = type(error).__module__.partition(".")[0]
        if library not in _LIBRARIES and not isinstance(error, OSError):
            raise
        from mergerepl.spark.errors import cause_of, engine_answers

        if not engine_answers():
            raise EngineLostError(
                f"{doing} was cut short: the Spark engine ended, for lack of memory, perhaps ($MERGEREPL_MEMORY gives the "
                "embedded one more). What was done before stays done; run `mergerepl apply` again."
            ) from error
        raise StoreError(
            f"{doing} failed: {cause_of(error)}. What was done before stays done; see to the cause and run `mergerepl "
            "apply` again."
        ) from error


def carry_out(
    steps: Sequence[Step[RunT]],
    run: RunT,
    progress: Progress,
    *,
    errors: Callable[[str], AbstractContextManager[None]] = engine_errors,
    planned: Collection[PlanStep] | None = None,
) -> None:
    """Carry the steps out, in order; `errors` turns a library's error in a named step into one of ours.

    `planned` are the steps of an earlier dry run, None without one: a step that removes rows must be one of them.

    Raises: ConfigurationError if it is not (nothing was changed); EngineLostError, StoreError naming the step; the errors
        of the step itself.
    """
    going = [step.plan for step in steps if planned is not None and step.removes_rows]
    if other := next((each for each in going if each not in (planned or ())), None):
        raise ConfigurationError(
            f"The plan has changed since it was shown: '{other.action} {other.object}' removes rows and was not in it. "
            "Nothing was changed. Run `mergerepl apply` again."
        )
    for step in steps:
        name = f"{step.action} {step.object}"
        progress.step(name)
        failpoint(f"apply.before_{step.action}")
        with errors(f"Step '{name}'"):
            step.run(run)
        failpoint(f"apply.after_{step.action}")
