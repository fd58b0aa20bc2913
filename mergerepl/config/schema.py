"""The keys of the project file, their types and the rules of single values: a pydantic model for each `type`.

These models are the only declaration. Messages, the JSON Schema and the tables of the docs follow them.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import models_json_schema

from mergerepl import roots
from mergerepl.config.stated import LONGEST_NAME, check_name, check_table
from mergerepl.config.wording import known, shown, with_variables, without_variables
from mergerepl.model.later import instead_of
from mergerepl.model.publication import DEFAULT_CONFLICT_RETENTION, DEFAULT_RETENTION
from mergerepl.model.resolvers import ALIASES, PRIORITY, RESOLVERS
from mergerepl.model.tracking_options import TrackingOptions
from mergerepl.model.transactional import DEFAULT_MAX_RETENTION, DEFAULT_MIN_RETENTION, MOST_STREAMS
from mergerepl.model.words import DURATION_PATTERN, parse_duration
from mergerepl.transactional.call_syntax import CommandType, Operation

PUBLISHER_WINS: Final = "publisher wins"

LONGEST_DURATION = timedelta(days=36_500)


def _replica_name(text: str) -> str:
    if text.lower().endswith((".yml", ".yaml")):
        raise ValueError(f"is {shown(text)}, which looks like a file: leave the ending out")
    return text


def _columns(names: list[str]) -> list[str]:
    """Return column names: at least one, each once (Spark does not distinguish case)."""
    if not names:
        raise ValueError("is an empty list; name at least one column, or leave the key out")
    if not all(name.strip() for name in names):
        raise ValueError("holds an empty column name")
    seen: set[str] = set()
    for name in names:
        # Delta ignores case: `masse` is not `maße`.
        if name.lower() in seen:
            raise ValueError(f"names the column {shown(name)} twice")
        seen.add(name.lower())
    return names


def _folder(stated: object) -> object:
    folder = with_variables(stated)
    if isinstance(folder, str) and roots.masked(folder) != folder:
        raise ValueError(
            f"is {shown(folder)}, which holds a user, password or signature: leave it out; credentials come from the "
            "environment of the store"
        )
    return folder


def _duration(*, unit: timedelta = timedelta(hours=1), least: int = 1) -> Callable[[object], timedelta]:
    """Return the reader of a duration of at least `least` whole units; a bare number counts days."""

    def read(stated: object) -> timedelta:
        is_number = isinstance(stated, int) and not isinstance(stated, bool)
        text = f"{stated} days" if is_number else with_variables(stated)
        found = parse_duration(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(f"is {shown(stated)}; write it as `14 days`, `2 weeks` or `36h`")
        if found < least * unit:
            least_text = "more than 0" if least else "0 or more"
            raise ValueError(
                f"is {shown(stated)}; it must be {least_text} (leave the key out for the default)"
            )
        if found > LONGEST_DURATION:
            raise ValueError(f"is {shown(stated)}; the longest is {LONGEST_DURATION.days} days")
        if found % unit:
            raise ValueError(f"is {shown(stated)}; write it in whole {_UNITS[unit]}")
        return found

    return read


def _share(stated: object) -> float:
    """Return the part that `80%` states."""
    found = re.fullmatch(r"\s*(\d{1,3})\s*%\s*", stated) if isinstance(stated, str) else None
    if found is None or not 1 <= int(found[1]) <= 100:
        raise ValueError(f"is {shown(stated)}; write it as `80%`, from 1% to 100%")
    return int(found[1]) / 100


def _conflict_retention(stated: object) -> int:
    """Return the days that conflicts are kept; 0: for ever."""
    if stated == 0 and not isinstance(stated, bool):
        return 0
    return _duration(unit=timedelta(days=1))(stated).days


def _resolver(name: str) -> str:
    if instead := instead_of("merge", "name", name.lower()):
        raise ValueError(f"is {shown(name)}, a resolver of a later version. {instead.rstrip('.')}")
    chosen = ALIASES.get(name.lower(), name)
    if chosen not in RESOLVERS:
        raise ValueError(f"is {shown(name)}; {known(name, RESOLVERS, 'the resolvers are')}")
    return chosen


def _compensate(stated: bool | str) -> bool:
    """Whether the subscriber undoes changes that the publisher's table refuses."""
    if stated is True or stated == "both":
        instead = instead_of("merge", "compensate_for_errors", "both") or ""
        raise ValueError(f"is {shown(stated)}, a value of a later version. {instead.rstrip('.')}")
    if stated is False or stated == "upload":
        return stated == "upload"
    raise ValueError(f"is {shown(stated)}, and it must be false or `upload`")


def _command(operation: Operation) -> AfterValidator:
    return AfterValidator(lambda text: CommandType.parse(text, operation).text)


def _policy(stated: str) -> str:
    """Return how conflicts of subscribers that write are decided."""
    if stated != PUBLISHER_WINS:
        instead = instead_of("transactional", "conflict_policy", stated)
        raise ValueError(
            f"is {shown(stated)}; it may be `{PUBLISHER_WINS}`" + (f". {instead[:-1]}" if instead else "")
        )
    return stated


def _skip(numbers: list[int]) -> list[int]:
    wrong = [number for number in numbers if number not in (20598, 2627, 2601)]
    if wrong:
        instead = instead_of("transactional", "skip_errors", wrong[0])
        raise ValueError(
            f"holds {wrong[0]}; it may hold 20598, 2627 and 2601" + (f". {instead[:-1]}" if instead else "")
        )
    return numbers


def _schema(text: str) -> str:
    """Return the name of a schema of the session's catalog, in lower case, as a Hive metastore has it."""
    catalog, _, schema = text.rpartition(".")
    if catalog.lower() not in ("", "spark_catalog"):
        raise ValueError(
            f"is {shown(text)}, and names are looked up in the catalog of the Spark session alone, as in `sales` or "
            "`spark_catalog.sales` (a Hive metastore). Tables that Unity Catalog manages are not written by path: publish "
            "an external table by its location without `catalog`, or copy it to one"
        )
    if not re.fullmatch(r"[A-Za-z0-9_]+", schema):
        raise ValueError(f"is {shown(text)}; the name of a schema has letters, digits and `_` only")
    return schema.lower()


def _track(stated: list[str]) -> list[str]:
    if wrong := next((each for each in stated if each.upper() not in TrackingOptions.__members__), None):
        raise ValueError(f"holds {shown(wrong)}; it may hold `insert`, `update`, `delete` or `all`")
    return stated


PlainText = Annotated[str, AfterValidator(without_variables)]
Name = Annotated[PlainText, AfterValidator(check_name)]
Columns = Annotated[list[PlainText], AfterValidator(_columns)]
Table = Annotated[PlainText, AfterValidator(check_table)]
ReplicaName = Annotated[PlainText, AfterValidator(check_name), AfterValidator(_replica_name)]
Text = Annotated[PlainText, Field(min_length=1)]
Schema = Annotated[PlainText, AfterValidator(_schema)]
Folder = Annotated[str, BeforeValidator(_folder)]
HostName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), BeforeValidator(with_variables)]
_DURATION_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "pattern": DURATION_PATTERN},
            {"type": "string", "pattern": r"\$\{"},
            {"type": "integer", "minimum": 0},
        ]
    }
)
Hours = Annotated[timedelta, BeforeValidator(_duration()), _DURATION_SCHEMA]
AnyHours = Annotated[timedelta, BeforeValidator(_duration(least=0)), _DURATION_SCHEMA]
Minutes = Annotated[timedelta, BeforeValidator(_duration(unit=timedelta(minutes=1))), _DURATION_SCHEMA]
Seconds = Annotated[
    timedelta, BeforeValidator(_duration(unit=timedelta(seconds=1), least=0)), _DURATION_SCHEMA
]
_UNITS = {
    timedelta(seconds=1): "seconds",
    timedelta(minutes=1): "minutes",
    timedelta(hours=1): "hours",
    timedelta(days=1): "days",
}


Share = Annotated[
    float, BeforeValidator(_share), WithJsonSchema({"type": "string", "pattern": r"^\s*\d{1,3}\s*%\s*$"})
]


class Keys(BaseModel):
    """Values must have the right type as written: `yes` is not a name, "75" not a number."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ResolverKeys(Keys):
    """How conflicts of an article are decided."""

    name: Annotated[str, AfterValidator(_resolver)] = PRIORITY
    resolution: Literal["row", "columns"] = "row"
    column: Text | None = None
    columns: Columns | None = None
    delimiter: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    update_delete: (
        Literal["priority", "publisher_wins", "subscriber_wins", "update_wins", "delete_wins"] | None
    ) = None
    resolver_info: Text | None = None
    function: Text | None = None


class ArticleKeys(Keys):
    """One item of `articles`."""

    name: Name
    table: Table | None = None
    key: Columns | None = None
    rowguid: Text | None = None
    tracking: Literal["row", "column"] = "row"
    columns: Columns | None = None
    resolver: ResolverKeys = ResolverKeys()
    filter: Text | None = None
    partition_options: Literal[0, 1, 2, 3] = 0
    compensate_for_errors: Annotated[
        bool, BeforeValidator(_compensate), WithJsonSchema({"enum": [False, "upload"]})
    ] = False


class JoinKeys(Keys):
    """One item of `joins`."""

    article: str
    parent: str
    on: str = Field(min_length=1)
    unique: bool = False


class SubscriptionKeys(Keys):
    """One item of `subscriptions`."""

    subscriber: Folder
    name: ReplicaName | None = None
    type: Literal["server", "client"] = "server"
    priority: float | None = Field(default=None, ge=0, le=99.99, allow_inf_nan=False)
    sync_type: Literal["automatic", "none"] = "automatic"
    host_name: HostName | None = None
    suser_sname: HostName | None = None
    catalog: Schema | None = None


class DeliveryAlertKeys(Keys):
    """`alerts` of a transactional publication: from when `status` and its `--check` warn."""

    expiration: Share | None = None
    pending_hours: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    run_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    min_rows_per_second: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    uninitialized: bool = True


class AlertKeys(DeliveryAlertKeys):
    """`alerts` of a merge publication."""

    capture_lag: Share | None = None
    conflicts_per_session: int | None = Field(default=None, ge=0)


class CaptureAlertKeys(Keys):
    """`alerts` of a captured folder."""

    capture_lag: Share | None = None


class PublicationKeys(Keys):
    """A document without `type`, or with `type: merge`."""

    publication: Name
    type: Literal["merge"] = "merge"
    publisher: Folder
    articles: list[ArticleKeys] = Field(min_length=1)
    subscriptions: list[SubscriptionKeys] = []
    retention: Hours = DEFAULT_RETENTION
    conflict_retention: Annotated[int, BeforeValidator(_conflict_retention), _DURATION_SCHEMA] = (
        DEFAULT_CONFLICT_RETENTION
    )
    conflict_logging: Literal["publisher", "subscriber", "both"] = "publisher"
    engine: Literal["spark", "auto"] = "auto"
    joins: list[JoinKeys] = []
    allow_partition_realignment: bool = True
    catalog: Schema | None = None
    alerts: AlertKeys = AlertKeys()


class TransactionalArticleKeys(Keys):
    """One item of `articles` in a transactional publication."""

    name: Name
    table: Table | None = None
    key: Columns
    columns: Columns | None = None
    filter: Text | None = None
    ins_cmd: Annotated[str, _command(Operation.INSERT)] = "CALL"
    upd_cmd: Annotated[str, _command(Operation.UPDATE)] = "SCALL"
    del_cmd: Annotated[str, _command(Operation.DELETE)] = "CALL"
    text_columns: Columns | None = None
    singleton_key_updates: bool = True


class TransactionalSubscriptionKeys(Keys):
    """One item of `subscriptions` in a transactional publication."""

    subscriber: Folder
    name: ReplicaName | None = None
    sync_type: Literal["automatic", "none"] = "automatic"
    verify: bool = True
    skip_errors: Annotated[list[int], AfterValidator(_skip)] = []
    streams: int = Field(default=1, ge=1, le=MOST_STREAMS)
    destination: dict[str, Table] = {}
    procedures: dict[str, Text] = {}
    updatable: Literal["none", "queued"] = "none"


class TransactionalKeys(Keys):
    """A document with `type: transactional`."""

    publication: Name
    type: Literal["transactional"]
    publisher: Folder
    articles: list[TransactionalArticleKeys]
    subscriptions: list[TransactionalSubscriptionKeys] = []
    retention: AnyHours = DEFAULT_MAX_RETENTION
    min_retention: AnyHours = DEFAULT_MIN_RETENTION
    conflict_retention: Annotated[int, BeforeValidator(_conflict_retention), _DURATION_SCHEMA] = (
        DEFAULT_CONFLICT_RETENTION
    )
    conflict_policy: Annotated[
        str, AfterValidator(_policy), WithJsonSchema({"type": "string", "enum": [PUBLISHER_WINS]})
    ] = PUBLISHER_WINS
    alerts: DeliveryAlertKeys = DeliveryAlertKeys()


class CaptureTableKeys(Keys):
    """One item of `tables` in a captured folder: a capture instance."""

    table: Table
    name: Text | None = None
    key: Columns | None = None
    columns: Columns | None = None
    net: bool | None = None
    on_gap: Literal["compare", "stop"] = "compare"


class CaptureJobKeys(Keys):
    """`jobs: {capture: …}`."""

    maxtrans: int | None = Field(default=None, ge=1)
    maxscans: int | None = Field(default=None, ge=1)
    continuous: bool | None = None


class CleanupJobKeys(Keys):
    """`jobs: {cleanup: …}`."""

    threshold: int | None = Field(default=None, ge=1)
    schedule: Text | None = None


class JobKeys(Keys):
    """`jobs` of a captured folder."""

    capture: CaptureJobKeys = CaptureJobKeys()
    cleanup: CleanupJobKeys = CleanupJobKeys()


class CaptureKeys(Keys):
    """A document with `type: cdc`."""

    type: Literal["cdc"]
    root: Folder
    tables: list[CaptureTableKeys]
    retention: Minutes | None = None
    log_retention: Hours | None = None
    interval: Seconds | None = None
    jobs: JobKeys = JobKeys()
    alerts: CaptureAlertKeys = CaptureAlertKeys()


class TrackingTableKeys(Keys):
    """One item of `tables` in a tracked folder."""

    table: Table
    key: Columns | None = None
    rowguid: Text | None = None
    track: Annotated[list[str], AfterValidator(_track), Field(min_length=1)] = ["all"]


class TrackingKeys(Keys):
    """A document with `type: tracking`."""

    type: Literal["tracking"]
    root: Folder
    tables: list[TrackingTableKeys]
    retention: Hours = DEFAULT_RETENTION
    foreign: Literal["adopt", "refuse"] = "adopt"


MODELS: Final[dict[str, type[Keys]]] = {
    "merge": PublicationKeys,
    "transactional": TransactionalKeys,
    "cdc": CaptureKeys,
    "tracking": TrackingKeys,
}
"""The model of a document by its `type`."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a document, with a branch for each `type`."""
    # Only this one caller needs the texts.
    from mergerepl.config.meanings import add_meanings

    _, schema = models_json_schema([(model, "validation") for model in MODELS.values()])
    branches = [{"$ref": f"#/$defs/{model.__name__}"} for model in MODELS.values()]
    for stated in schema["$defs"].values():
        for key in stated["properties"].values():
            if DURATION_PATTERN in str(key):
                # pydantic writes it as ISO 8601, which the file does not take.
                key.pop("default", None)
    add_meanings(schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mergerepl.yml",
        "oneOf": branches,
        **schema,
    }
