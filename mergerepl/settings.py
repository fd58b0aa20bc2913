"""Settings from the environment. `mergerepl.spark` reads its own: Java, JARs, cache, memory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mergerepl.errors import ConfigurationError

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_OF_WORK = (
    "MERGEREPL_",
    "SPARK_",
    "PYSPARK_",
    "HADOOP_",
    "JAVA_",
    "JDK_",
    "_JAVA_",
    "DATABRICKS_",
    "XDG_C",
    "AWS_",
    "AZURE_",
)
_OF_WORK_TOO = ("HOME", "PYTHONPATH", "TMPDIR", "TZ")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Settings:
    """Each field is set by `MERGEREPL_<FIELD>`."""

    file: str = ""
    """`MERGEREPL_FILE`: the project file, or the folder of tables, of commands that name none."""
    debug: bool = False
    """`MERGEREPL_DEBUG=1`: an error shows its traceback, as `--verbose` does. Default: off."""
    agent_config: str = ""
    """`MERGEREPL_AGENT_CONFIG`: the agent's own file. Default: `~/.config/mergerepl/agent.yml`, if it exists."""
    log_level: str = "WARNING"
    """`MERGEREPL_LOG_LEVEL`: the level that the command line logs to standard error. Default: WARNING."""
    strict_engine: bool = False
    """`MERGEREPL_STRICT_ENGINE=1`: a refusal by Arrow or delta-rs that mergerepl does not foresee fails the command
    instead of falling back to Spark. For tests. Default: off."""
    lease_s: float = 60.0
    """`MERGEREPL_LEASE_S`: seconds after which the lease of a replica on an object store is taken over from a holder
    that no longer renews it. All machines need the same value. Default: 60."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Return the settings of the environment (of this process unless another is given).

        Raises:
            ConfigurationError: A variable holds an invalid value.
        """
        variables = os.environ if environment is None else environment
        return cls(
            file=variables.get("MERGEREPL_FILE", ""),
            debug=_flag("MERGEREPL_DEBUG", variables.get("MERGEREPL_DEBUG", "")),
            agent_config=variables.get("MERGEREPL_AGENT_CONFIG", ""),
            log_level=_log_level(variables.get("MERGEREPL_LOG_LEVEL") or cls.log_level),
            strict_engine=_flag("MERGEREPL_STRICT_ENGINE", variables.get("MERGEREPL_STRICT_ENGINE", "")),
            lease_s=_seconds("MERGEREPL_LEASE_S", variables.get("MERGEREPL_LEASE_S"), cls.lease_s),
        )


def leave_out_plugins() -> None:
    """Let pydantic not look for plugins in the entry points of all installed packages: 4 % of a `status`."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def _flag(name: str, text: str) -> bool:
    value = text.strip().lower()
    if value not in _TRUE + _FALSE:
        raise ConfigurationError(f"{name} is {text!r}: set it to 1 or 0.")
    return value in _TRUE


def _seconds(name: str, text: str | None, default: float) -> float:
    try:
        value = float(text or default)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigurationError(f"{name} is {text!r}: set it to a number of seconds above 0.")
    return value


def _log_level(text: str) -> str:
    if text.upper() not in LOG_LEVELS:
        raise ConfigurationError(
            f"MERGEREPL_LOG_LEVEL is {text!r}: set it to one of {', '.join(LOG_LEVELS)}."
        )
    return text.upper()


def variable(name: str) -> str | None:
    """Return the value of a variable that a project file names; None if it is not set."""
    return os.environ.get(name)


def store_variables() -> dict[str, str]:
    """Return the variables about object stores: endpoint, region, and where credentials come from."""
    return {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "AZURE_"))}


def umask() -> int:
    """Return the permissions that new files of this process lack (its umask)."""
    # The umask can only be read by setting it; a file that another thread makes in between gets too few permissions,
    # never too many.
    before = os.umask(0o077)
    os.umask(before)
    return before


def environment_of_work() -> dict[str, str]:
    """Return the variables of this process that may change a command's outcome."""
    return {
        name: value
        for name, value in os.environ.items()
        # An agent has its Java already.
        if name in _OF_WORK_TOO or (name.startswith(_OF_WORK) and name != "JAVA_HOME")
    }


def agent_file() -> tuple[Path, bool]:
    """Return the agent's own file, and whether the environment names it; the default file need not exist.

    Raises: ConfigurationError.
    """
    named = Settings.from_environment().agent_config
    path = Path(named).expanduser() if named else Path.home() / ".config" / "mergerepl" / "agent.yml"
    return path, bool(named)
