"""Custom resolvers: the only module that passes rows to their functions."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conflict.errors import ResolverError
from conflict.resolvers.custom import (
    OUTCOME,
    PROBLEM,
    complete,
    conflicts_of,
    problems_of,
    schema_problem,
    with_answers,
)
from mergerepl.changes import ROWGUID
from mergerepl.merge.resolvers.functions import (
    ResolverContext,
    ResolverFunction,
    function_name,
    loaded,
    resolver_timeout_s,
)
from mergerepl.model.article import PublishedArticle
from mergerepl.spark.callers import callers_session
from mergerepl.spark.in_memory import Kept, keep_in_memory
from mergerepl.store.location import Location

log = logging.getLogger(__name__)

_SHOWN = 3


def answers_of_functions(
    detected: DataFrame, articles: Sequence[PublishedArticle], *, roots: tuple[Location, Location], kept: Kept
) -> DataFrame:
    """Return the detected rows with the answers of the functions that these articles name.

    `roots` are the publisher's and the subscriber's. Each function runs once: its answer is kept, so that a task that
    Spark repeats finds the same decision.

    Raises: ResolverError if one fails or returns an unusable answer; ConfigurationError.
    """
    for article in articles:
        name = function_name(article)
        function = loaded(article, name, roots)
        asked = kept.keep(conflicts_of(detected, article))
        if asked.count():
            context = ResolverContext(article.name, *map(str, roots))
            answers = _answers(article, name, function, asked, context, kept)
        else:
            # A function that fails on an empty input must not stop a session without conflicts.
            answers = complete(asked.select(ROWGUID, F.lit("default").alias(OUTCOME)), asked)
        detected = with_answers(detected, answers, article, name)
    return detected


def _in_time(
    article: PublishedArticle, name: str, context: SparkContext, answered: Callable[[], DataFrame]
) -> DataFrame:
    """Return a function's answer, if it arrives within the agent's timeout.

    Raises: ResolverError if it takes longer: its Spark jobs are cancelled, and its other work is discarded.
    """
    limit_s, group = resolver_timeout_s(), f"mergerepl-resolver-{uuid4()}"
    outcome: Future[DataFrame] = Future()

    def run() -> None:
        context.setJobGroup(group, f"resolver {name} of article {article.name}", interruptOnCancel=True)
        try:
            outcome.set_result(answered())
        except BaseException as error:
            outcome.set_exception(error)

    # No pool: it would wait for a function that never ends.
    Thread(target=run, daemon=True, name=group).start()
    if not wait([outcome], limit_s).done:
        context.cancelJobGroup(group)
        raise ResolverError(article.name, name, f"took more than {limit_s:g} s (`resolver_timeout_s`)")
    return outcome.result()


def _answers(
    article: PublishedArticle,
    name: str,
    function: ResolverFunction,
    asked: DataFrame,
    context: ResolverContext,
    kept: Kept,
) -> DataFrame:
    def answered() -> DataFrame:
        with callers_session():
            given: Any = function(asked, context)
        if not isinstance(given, DataFrame):
            raise ResolverError(article.name, name, f"returned {type(given).__name__}, not a DataFrame")
        problem = schema_problem(given.schema, asked.schema)
        if problem is not None:
            raise ResolverError(article.name, name, f"answered what cannot be used: {problem}")
        answers = keep_in_memory(complete(given, asked))
        answers.count()
        return answers

    try:
        answers = _in_time(article, name, asked.sparkSession.sparkContext, answered)
        kept.frames.append(answers)
    except ResolverError:
        raise
    except Exception as error:
        log.debug("resolver %s failed", name, exc_info=True)
        text = str(error).strip().partition("\n")[0]
        raise ResolverError(article.name, name, f"failed: {type(error).__name__}: {text}") from error
    found = problems_of(answers, asked, article.identity).limit(_SHOWN).collect()
    if found:
        problems = ", ".join(f"{row[PROBLEM]} ({row[ROWGUID]})" for row in found)
        raise ResolverError(article.name, name, f"answered what cannot be used: {problems}")
    return answers
