"""The scripts of the project, as modules."""

from importlib import util
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[1] / "scripts"


def script(name: str) -> ModuleType:
    """Return `scripts/NAME.py` as a module."""
    spec = util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
