"""Which procedures a subscriber has, which methods a file changes: from the article and the subscription alone."""

from mergerepl.transactional.article_procedures import at_subscriber, called_procedures
from mergerepl.transactional.call_syntax import Operation
from mergerepl.transactional.procedures import custom_operations
from tests.transactional.publications import shape

ARTICLE = shape(["id", "qty"], ["int", "int"], ["id"], destination_object="orders")


def test_a_subscriber_replaces_procedures_by_the_names_that_the_article_calls() -> None:
    called = {each.value: name for each, name in called_procedures(ARTICLE).items()}
    assert called == {"ins": "sp_MSins_dboorders", "upd": "sp_MSupd_dboorders", "del": "sp_MSdel_dboorders"}
    assert at_subscriber(ARTICLE, {}) is ARTICLE
    other = at_subscriber(ARTICLE, {"sp_MSupd_dboorders": "audit_update", "of_another_article": "x"})
    assert (other.ins_cmd, other.upd_cmd, other.del_cmd) == ("CALL", "SCALL audit_update", "CALL")
    assert custom_operations(other) == {Operation.UPDATE: "audit_update"}
    # A custom procedure of the article, too; an operation without a call has none.
    custom = shape(
        ["id"],
        ["int"],
        ["id"],
        destination_object="t",
        upd_cmd="XCALL audit_update",
        del_cmd="NONE",
        ins_cmd="SQL",
    )
    assert called_procedures(custom) == {Operation.UPDATE: "audit_update"}
    assert at_subscriber(custom, {"audit_update": "mine"}).upd_cmd == "XCALL mine"
