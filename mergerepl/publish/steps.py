"""The steps of `apply`, for merge and transactional publications: all are checked, then each is carried out.

No record marks an interrupted step. The next `apply` reads the stored state and plans the steps that it still lacks.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mergerepl.errors import ConfigurationError
from mergerepl.failpoints import failpoint
from mergerepl.model.progress import Progress
from mergerepl.model.results import PlanStep
from mergerepl.spark.plain import plain_errors

PURPOSE = "mergerepl apply"
AGAIN = "What was done before stays done: fix the cause and run `mergerepl apply` again."

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


def carry_out(
    steps: Sequence[Step[RunT]], run: RunT, progress: Progress, *, planned: Collection[PlanStep] | None = None
) -> None:
    """Carry the steps out, in order.

    `planned` are the steps of an earlier dry run, None without one: a step that removes rows must be one of them.

    Raises: ConfigurationError if it is not (nothing was changed); EngineLostError, CommitConflictError, StoreError naming
        the step; the errors of the step itself.
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
        with plain_errors(f"step '{name}' was carried out", again=AGAIN):
            step.run(run)
        failpoint(f"apply.after_{step.action}")
