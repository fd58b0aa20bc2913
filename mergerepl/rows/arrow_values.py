"""Values of Arrow columns as Python's; as text if Python lacks the value (a date after the year 9999)."""

import re
import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def python_values(column: "pa.ChunkedArray[Any]") -> list[Any]:
    """Return the values of a column of pyarrow or delta-rs; maps are lists of pairs, as in Arrow."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        import pyarrow as pa

        # One by one takes ten times as long. delta-rs' columns come from another library than pyarrow's.
        values = [_python_value(each) for each in pa.chunked_array(column)]
    return values


def _python_value(scalar: "pa.Scalar[Any]") -> Any:
    import pyarrow as pa

    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        match scalar:
            case pa.Date32Scalar():
                return _time_text(scalar.value, "D")
            case pa.TimestampScalar():
                zone = "+00:00" if scalar.type.tz else ""
                return _time_text(scalar.value, scalar.type.unit) + zone
            case pa.StringScalar() | pa.LargeStringScalar() | pa.StringViewScalar():
                return scalar.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
            case pa.StructScalar():
                return {name: _python_value(part) for name, part in scalar.items()}
            case pa.MapScalar():
                return [(_python_value(pair["key"]), _python_value(pair["value"])) for pair in scalar.values]
            case pa.ListScalar() | pa.LargeListScalar():
                return [_python_value(part) for part in scalar.values]
        raise


def _time_text(value: int, unit: str) -> str:
    """Return a date or time as Spark's text: a sign unless the year has four digits, no empty fraction."""
    import numpy as np

    text = str(np.asarray(value).astype(f"datetime64[{unit}]"))
    sign, year, rest = re.fullmatch(r"(-?)(\d+)(-.*)", text).groups()  # type: ignore[union-attr]
    sign = sign or "+" * (len(year) > 4)
    return f"{sign}{year:0>4}{rest.replace('T', ' ').removesuffix('.000000')}"


class ArrowAlone(MetaPathFinder):
    """Hides pandas from Arrow while Arrow asks for it: once, at its first value, for a quarter of a small `sync`.

    For a process of our own. Later imports find pandas; its values are lists to Arrow until `end`.
    """

    @classmethod
    def begin(cls) -> None:
        """Hide pandas when Arrow is imported, unless either is loaded."""
        if not {"pandas", "pyarrow"} & sys.modules.keys():
            sys.meta_path.insert(0, cls())

    @staticmethod
    def end() -> None:
        """Let Arrow ask again, before code of users runs."""
        with suppress(ImportError):
            import pyarrow as pa

            pa.table({}).to_pandas()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Refuse pandas; find Arrow so that it asks as soon as it is loaded."""
        if name == "pandas":
            raise ModuleNotFoundError("Hidden while Arrow is imported.", name=name)
        if name != "pyarrow":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_ask(module: ModuleType) -> None:
            sys.meta_path.insert(0, self)
            try:
                load(module)
                module.scalar(True)
            finally:
                sys.meta_path.remove(self)

        spec.loader.exec_module = load_and_ask  # type: ignore[method-assign]
        return spec
