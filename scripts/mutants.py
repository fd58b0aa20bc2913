"""Seeded faults: does the suite notice?

    scripts/mutants                 every fault, about a minute each
    scripts/mutants tombstone late  those whose name or file holds a word
    scripts/mutants --changed       those whose file or tests differ from the branch main

Each fault is one replacement in a copy of the code; the tests named for it run there until one fails: first those
of the default suite, then those that are left to --long. Prints which test caught which fault, and which faults only the
longer suite catches; exit code 1 if one survived.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from mergerepl.spark import confs, jvm
from mergerepl.spark.java import find_java

ROOT = Path(__file__).parents[1]
PASSED, NONE_CHOSEN = 0, 5
"""Exit codes of pytest."""


@dataclass(frozen=True)
class Mutant:
    """A fault: in `file`, `old` becomes `new`; `tests` must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


def read_mutants() -> list[Mutant]:
    """Return the faults of tests/mutants.yml."""
    stated = yaml.safe_load((ROOT / "tests" / "mutants.yml").read_text(encoding="utf-8"))
    return [Mutant(**{**each, "tests": stated["tests"][each["tests"]]}) for each in stated["mutants"]]


@contextmanager
def copied_project() -> Iterator[Path]:
    """Copy the project once for all faults: what is compiled of it stays."""
    skipped = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "__pycache__", ".*_cache", "demo", "docs")
    with tempfile.TemporaryDirectory(prefix="mergerepl-mutants-") as name:
        shutil.copytree(ROOT, name, ignore=skipped, dirs_exist_ok=True)
        yield Path(name)


@contextmanager
def planted(mutant: Mutant, folder: Path) -> Iterator[None]:
    """Make the replacement in the copy, and take it back.

    Raises: SystemExit if the text is not there exactly once: the code has moved on.
    """
    path = folder / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.old!r} is in {mutant.file} {text.count(mutant.old)} times")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


@contextmanager
def lent_jvm() -> Iterator[dict[str, str]]:
    """Start a JVM that all runs use, one after the other: a cold one takes longer than most tests. Yields its address."""
    scratch = Path(tempfile.mkdtemp(prefix="mergerepl-mutants-"))
    settings = confs.session_confs(scratch=scratch, cores=confs.usable_cores(), long_running=True)
    # pyspark takes the confs of a JVM it is given, as from spark-submit, from system properties.
    properties = {"spark.master": "local[*]", "spark.app.name": "mutants", **settings}
    os.environ["JAVA_TOOL_OPTIONS"] = " ".join(f"-D{name}={value}" for name, value in properties.items())
    running = jvm.launch(find_java(), long_running=True, heap_mb=4096)
    del os.environ["JAVA_TOOL_OPTIONS"]
    try:
        yield {"PYSPARK_GATEWAY_PORT": str(running.port), "PYSPARK_GATEWAY_SECRET": running.secret}
    finally:
        jvm.end(running.process)
        shutil.rmtree(running.scratch, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)


DEFAULT, LONG = "default", "--long"
SUITES = {DEFAULT: ["-m", "not slow"], LONG: ["-m", "slow"]}
"""The suites in the order in which they are asked -> what pytest is given to choose their tests."""


def killer(mutant: Mutant, folder: Path, spark: Mapping[str, str]) -> tuple[str | None, str, float]:
    """Return the test that failed first (None: all passed), its suite, and the seconds it took."""
    started = time.monotonic()
    with planted(mutant, folder):
        for suite, chosen in SUITES.items():
            test = failing(mutant, folder, chosen, spark)
            if test is not None:
                return test, suite, time.monotonic() - started
    return None, "", time.monotonic() - started


def failing(mutant: Mutant, folder: Path, chosen: Sequence[str], spark: Mapping[str, str]) -> str | None:
    """Return the first of a fault's tests that fails in a copy of the project; None if all pass or none is chosen.

    Raises: SystemExit if the tests do not run.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        *chosen,
        "-p",
        "no:cacheprovider",
        *mutant.tests.split(),
    ]
    environment = {**os.environ, **spark, "PYTHONPATH": str(folder), "MERGEREPL_TEST_PROFILE": "ci"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode in (PASSED, NONE_CHOSEN):
        return None
    # An error in what tests of one table share is theirs, too.
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode != 1 or not failed:
        raise SystemExit(f"{mutant.name}: the tests did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[0].split(" ", 2)[1].rpartition("/")[2]


CHANGED = "--changed"


def changed_files() -> set[str]:
    """Return the files that differ from the point where this branch left main, committed or not."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    return {*git("diff", "--name-only", "--merge-base", "main").split()}


def choose(mutants: Sequence[Mutant], words: Sequence[str], changed: Set[str]) -> list[Mutant]:
    """Return the mutants that the command line asks for; without words all of them."""
    if CHANGED in words:
        words = [word for word in words if word != CHANGED]
        named = {m: {test.partition("::")[0] for test in m.tests.split()} for m in mutants}
        mutants = [m for m in mutants if {m.file, *named[m]} & changed]
    return [m for m in mutants if not words or any(word in m.name or word in m.file for word in words)]


def main() -> None:
    """Run the chosen mutants."""
    words = sys.argv[1:]
    chosen = choose(read_mutants(), words, changed_files() if CHANGED in words else set())
    print("| fault | caught by | suite | s |\n|---|---|---|---|")
    caught: Counter[str] = Counter()
    with copied_project() as folder, lent_jvm() as spark:
        for mutant in chosen:
            test, suite, took = killer(mutant, folder, spark)
            caught[suite] += test is not None
            print(f"| {mutant.name} | {test or '**nothing**'} | {suite} | {took:.0f} |", flush=True)
    print(f"\n{caught.total()} of {len(chosen)} caught, {caught[DEFAULT]} of them by the default suite.")
    raise SystemExit(0 if caught.total() == len(chosen) else 1)


if __name__ == "__main__":
    main()
