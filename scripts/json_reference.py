"""Write docs/cli-json.md from the results of the commands; with `--check`, only say whether it is up to date."""

import ast
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from mergerepl.model import cdc, conflicts, delivery, replica_status, schema_changes, tasks, tracking
from mergerepl.model import results as merge
from mergerepl.model.resolvers import Resolver
from mergerepl.monitoring.doctor import Check
from mergerepl.tracking.windows import WindowState

PAGE = Path(__file__).parent.parent / "docs" / "cli-json.md"
HEAD = """# What `--json` prints

<!-- Written by scripts/json_reference.py from the types of the results. Do not edit. -->

Every command prints one JSON object to standard output and nothing else there; `sync --interval`, `agent run` and `demo`
print one object a line. A release may add keys; a key leaves or changes its meaning only with a notice in the changelog.
Exit codes are the same with and without `--json` ([errors.md](errors.md)).

| value | as JSON |
|---|---|
| time | ISO 8601 with its offset |
| time in a key of `validate`, `conflicts` | as Spark writes it (`2026-01-01 10:00:00`), in UTC or your session's zone |
| duration | seconds |
| binary, LSN | text such as `0x1B41` |
| decimal, `NaN`, infinity | text |
| row | object, column to value |
| map | object; array of `[key, value]` if its keys are structs or arrays |
| anything that cannot be read, as of a replica out of reach | null, never 0 |

No value is cut. Output is ASCII: other characters are escaped. Without `--json` all reports show values alike: `0x1B41`,
`2026-01-01T10:00:00+00:00`, `[1, 2]`, `{name: value}` for a struct and a map, `NULL`; of a longer value the first 1,000
characters, with the number of all.

A dry run prints the object of the run, with what would be done. Where that is known only afterwards it prints:

```json
{"dry_run": true, "would": "Partition 3 would be dropped."}
```

A command that fails before it has a result prints an error. That of Ctrl-C is `Interrupted` (exit code 130).

```json
{"error": {"error": "LeaseError", "message": "…", "transient": true, "replica": "/data/hq"}}
```

| here | means |
|---|---|
| `enable`, `list` | the commands of the group that print this object |
| array of, object of | a JSON array; a JSON object whose keys differ from result to result |
| error | the object in `error` above |
"""
SYNC = """If there is one session and it fails, the output is an error. With `--interval` each round is this object on one
line with `time`, or an error with `time` if it is tried again. The rounds end after one in which all sessions failed for
reasons that are not transient; if that was one session, or the configuration is wrong, the last line is an error."""
ROWS = "the rows, all values as text"


class Keys(NamedTuple):
    """An object that no type declares: its keys, their types, and the meaning of those that need words."""

    types: Mapping[str, Any]
    text: str = ""
    meaning: Mapping[str, str] = {}


Array = tuple
RESULTS: dict[str, dict[str, Any]] = {
    "init": {"": merge.InitResult},
    "apply": {"": merge.ApplyResult},
    "demo": {"": Keys({"text": str}, "One object for each line of the story.")},
    "sync": {"": Keys({"publication": str, "ok": bool, "sessions": Array[merge.SessionResult, ...]}, SYNC)},
    "capture": {"": Keys({"captured": Array[tasks.Captured, ...]})},
    "agent": {
        "run": cdc.JobEvent,
        "status": Keys({"agents": Array[cdc.AgentStatus, ...]}),
        "run --detach": Keys({"started": Array[cdc.AgentStatus, ...]}),
        "stop": Keys({"stopped": Array[cdc.AgentStatus, ...]}, "The agents that were ended."),
    },
    "status": {"": Keys({"status": Array[tasks.Status, ...]}, "`--check` prints the same.")},
    "pending": {
        "": Keys(
            {"pending": Array[tasks.Pending, ...]},
            "An entry without an article and with a `problem` is a subscription whose other end is out of reach.",
        ),
        "--list": Keys({"rows": Array[tasks.PendingRow, ...]}),
    },
    "history": {
        "": Keys(
            {"runs": Array[tasks.Run, ...], "total": int},
            "Newest first. A sync with nothing to do, one that another agent kept waiting, and a dry run have no entry.",
            {"total": "the number without `--limit`"},
        )
    },
    "row": {"": replica_status.RowInfo},
    "conflicts list": {
        "": Keys(
            {"replica": str, "total": int, "conflicts": Array[conflicts.ConflictRecord, ...]},
            "Newest first. The rows may be null.",
            {"total": "the number without `--limit`"},
        ),
        "--count-by": Keys({"replica": str, "counts": Array[conflicts.ConflictCount, ...]}),
    },
    "conflicts show": {
        "": Keys(
            {"replica": str, "total": int, "conflicts": Array[conflicts.ConflictRecord, ...]},
            "A row that is null was a delete.",
        )
    },
    "conflicts resolve": {"": conflicts.ResolveResult},
    "conflicts retry": {"": conflicts.RetryResult},
    "conflicts drop": {"": conflicts.PurgeResult},
    "conflicts export": {
        "": Keys(
            {"files": Mapping[str, int]},
            "`-o -` prints the rows themselves, without `--json`.",
            {"files": "path to number of conflicts"},
        )
    },
    "conflicts report": {
        "": Keys({"file": str, "conflicts": int}, "`-o -` prints the page itself, without `--json`.")
    },
    "conflicts resolvers": {"": Keys({"resolvers": Array[Resolver, ...]})},
    "dashboard": {
        "": Keys(
            {"files": Array[str, ...]},
            meaning={"files": "the page, and with `--with-values` the conflict reports beside it"},
        )
    },
    "validate": {"": Keys({"ok": bool, "articles": Array[merge.ArticleValidation, ...]})},
    "repair": {"": tasks.RepairResult},
    "reinit": {"": tasks.ReinitResult},
    "resume": {"": Keys({"table": str, "changed": bool})},
    "doctor": {"": Keys({"checks": Array[Check, ...]})},
    "cleanup": {"": tasks.CleanupResult},
    "vacuum": {"": Keys({"tables": Array[tasks.Vacuumed, ...]})},
    "tune": {"": merge.TuneResult},
    "partitions": {
        "list": Keys({"partitions": Array[replica_status.PartitionInfo, ...]}),
        "add`, `drop": replica_status.PartitionInfo,
    },
    "schema": {
        "list": Keys({"schema": Array[schema_changes.SchemaChange, ...]}),
        "skip": schema_changes.SkippedChange,
        "alter": schema_changes.AlterResult,
    },
    "transactional": {
        "browse": Keys({"commands": Array[delivery.Command, ...], "total": int}),
        "script": Keys({"script": str}),
        "read": Keys({"rows": Array[dict, ...]}, meaning={"rows": ROWS}),
        "skip": delivery.SkippedTransaction,
    },
    "cdc": {
        "enable`, `list": Keys({"capture_instances": Array[cdc.CaptureInstance, ...]}),
        "disable": Keys({"disabled": Array[str, ...]}, meaning={"disabled": "names of capture instances"}),
        "show": cdc.InstanceDescription,
        "changes": Keys(
            {"from_lsn": str, "to_lsn": str, "rows": Array[dict, ...], "total": int},
            "",
            {
                "rows": "the columns of [the query](cdc.md#all-changes-and-net-changes), captured values as text",
                "total": "the number without `--limit`",
            },
        ),
        "load": cdc.AppliedChanges,
        "cleanup": cdc.RemovedChanges,
        "relocate": Keys({"database": str, "new_epoch": bool}),
        "jobs list": Keys({"jobs": Array[cdc.Job, ...], "agent_runs": bool}),
        "jobs add`, `jobs change`, `jobs start`, `jobs stop": Keys({"job": cdc.Job, "agent_runs": bool}),
        "jobs drop": Keys({"dropped": str}),
        "lsn": Keys({"min_lsn": str, "max_lsn": str, "max_time": datetime}),
        "lsn LSN": Keys({"lsn": str, "epoch": int, "cycle": int, "slot": int}),
    },
    "tracking": {
        "enable": tracking.TrackedTable,
        "disable": Keys({"table": str, "tracked": bool}),
        "enumerate": Keys(
            {**get_type_hints(WindowState), "id": str, "tables": Mapping[str, dict]},
            "With `--output` it is `window.json`, too.",
            {
                "nonce": "nonce of the last transaction below ECSN",
                "initial": "tables of which the consumer has no copy yet: it takes all their rows",
                "tables": "table to the numbers of `deletes`, `inserts` and `updates`",
            },
        ),
        "acknowledge": tracking.ConsumerState,
        "forget": Keys({"consumer": str, "registered": bool}),
        "purge": tracking.Purged,
        "abort": Keys({"bsn": int, "state": str}),
        "adopt": Keys({"adopted": int}),
        "recover": Keys({"last_bsn": int, "last_csn": int, "open": Array[tracking.OpenTransaction, ...]}),
    },
    "abort": {"": Keys({}, "As `sync`.")},
    "touch": {"": merge.TouchResult},
    "completion": {"": Keys({}, "No JSON: the script of the shell.")},
}
"""Commands in the order of `--help` -> the words after it -> the object that they print."""

DETAILS = {
    tasks.Status: (
        replica_status.ReplicaStatus,
        delivery.DistributorStatus,
        cdc.DatabaseStatus,
        tracking.TrackingStatus,
    ),
    tasks.Captured: (merge.CaptureResult, cdc.ScanResult, delivery.LogReaderResult),
    tasks.Run: (
        replica_status.SessionRecord,
        delivery.Batch,
        delivery.AgentError,
        cdc.ScanSession,
        cdc.ScanError,
        tracking.CommittedTransaction,
    ),
}
"""Types whose `details` are a product's own value -> the types of it."""

NAME_OF_TYPE = (str, "the conflict type in words")
MORE: dict[type, dict[str, tuple[Any, str]]] = {
    merge.ArticleValidation: {
        "ok": (bool, "true if both sides hold the same rows as far as the level compares, or may differ"),
        "result": (
            str,
            "`equal` (nothing was left out), `uncertain` (equal but for waiting changes, or not compared row by row), "
            "`different` or `not_compared`",
        ),
    },
    merge.ConflictPreview: {"conflict_name": NAME_OF_TYPE},
    conflicts.ConflictRecord: {"conflict_name": NAME_OF_TYPE},
    replica_status.RowInfo: {
        "is_known": (
            bool,
            "false if no replica in reach has the row or knows that it was deleted: `current` has no meaning then",
        )
    },
}
"""Keys that a type's object has beside its fields."""
PLAIN = {str: "text", bool: "boolean", int: "number", float: "number", datetime: "time", timedelta: "seconds"}
PLAIN |= {bytes: "binary", dict: "object", Any: "any", object: "any", type(None): "null"}
_SECTION = re.compile(r"^Attributes: *\n", re.MULTILINE)


def page() -> str:
    """Return the page."""
    parts = [HEAD, *(part for command in RESULTS for part in _command(command)), "## Objects\n"]
    parts += [_object(kind) for kind in sorted(_described(), key=lambda each: each.__name__)]
    return "\n".join(parts)


def _command(command: str) -> Iterator[str]:
    yield f"## {command}\n"
    for words, printed in RESULTS[command].items():
        if not isinstance(printed, Keys):
            printed = Keys({}, _link(printed))
        said = [
            f"`{words}`: {printed.text}".strip() if words else printed.text,
            _table(printed.types, printed.meaning),
        ]
        joint = "\n\n" if "|---" in said[1] or len(said[0]) > 60 else " "
        yield joint.join(filter(None, said)).strip() + "\n"


def _described() -> set[type]:
    """Return the types that the page describes."""
    found: set[type] = set()
    waiting = [each for commands in RESULTS.values() for each in commands.values()]
    while waiting:
        each = waiting.pop()
        for annotation in each.types.values() if isinstance(each, Keys) else (each,):
            for kind in named(annotation) - found:
                found.add(kind)
                waiting += types_of(kind).values()
    return found


def named(annotation: Any) -> set[type]:
    """Return the types with keys of their own that an annotation names."""
    inner = get_args(annotation)
    if inner:
        return {kind for part in inner for kind in named(part)}
    return {annotation} if isinstance(annotation, type) and is_dataclass(annotation) else set()


def types_of(kind: type) -> dict[str, Any]:
    """Return the keys of a type's object, and their types."""
    hints = get_type_hints(kind, include_extras=True)
    if kind in DETAILS:
        hints["details"] = reduce(or_, DETAILS[kind]) | None
    more = {name: annotation for name, (annotation, _) in MORE.get(kind, {}).items()}
    return {each.name: hints[each.name] for each in fields(kind)} | more


def _object(kind: type) -> str:
    said = _SECTION.split(inspect.getdoc(kind) or "")[0].strip()
    meaning = _meanings(kind) | {name: text for name, (_, text) in MORE.get(kind, {}).items()}
    return f"### {kind.__name__}\n\n{_in_json(said)}\n\n{_table(types_of(kind), meaning)}"


def _meanings(kind: type) -> dict[str, str]:
    """Return the meaning of fields: from `Attributes:`, from annotations, and from the texts below them."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not is_dataclass(each):
            continue
        _, *listed = _SECTION.split(inspect.getdoc(each) or "") if each.__doc__ else ("",)
        for item in re.split(r"\n(?= {4}\w+: )", "\n" + listed[0].rstrip())[1:] if listed else ():
            name, _, text = item.strip().partition(": ")
            found[name] = text
        for name, hint in get_type_hints(each, include_extras=True).items():
            if get_origin(hint) is Annotated:
                found[name] = next(text for text in reversed(hint.__metadata__) if isinstance(text, str))
        found |= _texts_below(each)
    return {name: _in_json(text).rstrip(".") for name, text in found.items()}


def _texts_below(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the fields that a text stands below in the source."""
    [declared] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(declared, ast.ClassDef)
    for each, after in zip(declared.body, declared.body[1:], strict=False):
        if isinstance(each, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(each.target, ast.Name)
            yield each.target.id, ast.literal_eval(after.value)


def _in_json(text: str) -> str:
    """Return text of Python in the words of JSON, on one line a paragraph."""
    for python, json in (("None", "null"), ("True", "true"), ("False", "false")):
        text = re.sub(rf"\b{python}\b", json, text)
    return "\n\n".join(" ".join(part.split()).replace("|", "\\|") for part in text.split("\n\n"))


def _table(shown: Mapping[str, Any], meaning: Mapping[str, str]) -> str:
    if not shown:
        return ""
    if not any(name in meaning for name in shown):
        return ", ".join(f"`{name}` ({_type(annotation)})" for name, annotation in shown.items()) + ".\n"
    rows = "".join(
        f"| `{name}` | {_type(annotation)} | {meaning.get(name, '')} |\n"
        for name, annotation in shown.items()
    )
    return f"| key | value | meaning |\n|---|---|---|\n{rows}"


def _link(kind: type) -> str:
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def _type(annotation: Any) -> str:
    """Return a type in the words of JSON."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inner[0])
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_type, inner))
    if origin is not None and issubclass(origin, Mapping):
        return "object" if inner[1] is Any else f"object of {_type(inner[1])}"
    if origin is not None and issubclass(origin, tuple):
        return f"array of {_type(inner[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        is_text = issubclass(annotation, str)
        return ", ".join(f"`{each.value}`" for each in annotation) if is_text else "number"
    return PLAIN[annotation] if annotation in PLAIN else _link(annotation)


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE} is not what the results say: run python scripts/json_reference.py")
