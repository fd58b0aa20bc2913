"""The control plane alone answers what it can: no JVM is started (design section 2)."""

import subprocess
import sys

import pytest

HEAVY = ("pyspark", "delta", "pyarrow", "pandas", "numpy", "deltalake")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["sync", "--help"], ["conflicts", "--help"]]
)
def test_help_loads_no_engine(arguments: list[str]) -> None:
    script = (
        "import sys; from mergerepl.cli.main import main\n"
        f"sys.argv = ['mergerepl', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
