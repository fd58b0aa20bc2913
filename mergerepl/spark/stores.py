"""Spark on S3: the confs of S3A and of the log store that commits there, and the check of a session made elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from mergerepl.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_STORE = "io.mergerepl.ConditionalPutLogStore"
LOG_STORE_CONF = "spark.delta.logStore.s3a.impl"
STATIC_CONFS = {
    # Delta's own log store for S3 overwrites a commit that another process made at the same time.
    LOG_STORE_CONF: LOG_STORE,
    "spark.delta.logStore.s3.impl": LOG_STORE,
    # s3:// and s3a:// are the same place.
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
}
"""Confs of a SparkContext; they name classes that are loaded at the first use of a store."""

NO_CHECKSUMS = ("spark.databricks.delta.writeChecksumFile.enabled", "false")
"""Without a checksum file after each commit an append takes 15 requests instead of 30 (measured)."""

PERFORMANCE_FLAGS = "fs.s3a.performance.flags"

_PROVIDERS = (
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider",
    # The role of a container or of the machine.
    "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
)


def s3a_confs(options: Mapping[str, str]) -> dict[str, str]:
    """Return Hadoop's confs for `store.objects.storage_options`: where the store is, and whence credentials come.

    The JVM takes credentials from its own environment, or from the role of the machine, and renews them.
    """
    endpoint = options.get("AWS_ENDPOINT_URL", "")
    is_virtual = options.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST") == "true"
    return {
        "fs.s3a.aws.credentials.provider": ",".join(_PROVIDERS),
        "fs.s3a.endpoint.region": options["AWS_REGION"],
        "fs.s3a.path.style.access": "false" if is_virtual else "true",
        "fs.s3a.connection.ssl.enabled": "false" if endpoint.startswith("http://") else "true",
        # By default uploads are buffered on the disk of the driver and of each executor.
        "fs.s3a.fast.upload.buffer": "bytebuffer",
        **({"fs.s3a.endpoint": endpoint} if endpoint else {}),
    }


def find_stores(spark: SparkSession, options: Mapping[str, str]) -> None:
    """Let all sessions of an embedded JVM find the store; a bucket that was opened before stays as it was."""
    context: Any = spark.sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    for name, value in s3a_confs(options).items():
        hadoop.set(name, value)
    spark.conf.set(*NO_CHECKSUMS)


def require_log_store(spark: SparkSession) -> None:
    """Check that a session made elsewhere commits to S3 as this package does.

    Raises: EngineError: It has another log store, lacks the JAR, or creates files without a condition.
    """
    context: Any = spark.sparkContext
    stated = context.getConf().get(LOG_STORE_CONF, "")
    if stated != LOG_STORE:
        raise EngineError(
            f"The running Spark session has {LOG_STORE_CONF}={stated or 'unset'}: on S3 its commits could overwrite those "
            f"of other writers. Start it with `--conf {LOG_STORE_CONF}={LOG_STORE}` and the JAR that `python -m "
            "mergerepl.spark.jars --log-store` prints (docs/stores.md); or stop it, and mergerepl starts its own."
        )
    flags = context._jsc.hadoopConfiguration().get(PERFORMANCE_FLAGS) or ""
    if {"create", "*"} & {flag.strip().lower() for flag in flags.split(",")}:
        raise EngineError(
            f"The running Spark session has {PERFORMANCE_FLAGS}={flags}: files are then created without looking, and "
            "commits could overwrite others. Start it without `create` in it; or stop it, and mergerepl starts its own."
        )


def read_text(spark: SparkSession, uri: str) -> str | None:
    """Return the text of an object as a session reads it, or None if it finds none."""
    context: Any = spark.sparkContext
    files, path, _ = _hadoop(context, uri)
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        return bytes(stream.readAllBytes()).decode()
    finally:
        stream.close()


def writes_over(spark: SparkSession, uri: str) -> bool:
    """Try to commit where an object is, through the log store; return whether the object was replaced, wrongly."""
    context: Any = spark.sparkContext
    _, path, hadoop = _hadoop(context, uri)
    java = context._jvm
    actions = java.java.util.Collections.singleton("{}").iterator()
    try:
        java.io.mergerepl.ConditionalPutLogStore(hadoop).write(path, actions, False, hadoop)
    except Py4JJavaError as error:
        if "FileAlreadyExistsException" in str(error.java_exception):
            return False
        raise
    return True


def _hadoop(context: Any, uri: str) -> tuple[Any, Any, Any]:
    hadoop = context._jsc.hadoopConfiguration()
    path = getattr(context._jvm, "org.apache.hadoop.fs.Path")(uri)
    return path.getFileSystem(hadoop), path, hadoop
