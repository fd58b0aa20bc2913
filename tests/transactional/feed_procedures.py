"""Procedures of the user's own, as `--procedures tests.transactional.feed_procedures` imports them."""

from mergerepl import transactional as tr

COLUMNS = ["order_id", "region", "amount", "note"]


@tr.procedure("audit_update", operation="update", call="XCALL", columns=COLUMNS)
def audit_update(call: tr.Call) -> None:
    """Keep who changed an amount, then do what the generated procedure does."""
    changed = call.commands.where(call.has_changed("amount"))
    call.append(
        changed.selectExpr(
            "old_c1 AS order_id", "old_c3 AS was", "c3 AS became", "xact_seqno", "commit_time"
        ),
        "orders_audit",
    )
    call.default()


@tr.procedure("soften_delete", operation="delete", call="CALL", columns=None)
def soften_delete(call: tr.Call) -> None:
    """Mark a row as deleted instead of deleting it."""
    call.require_rows()
    gone = call.sql("SELECT pkc1 AS order_id, 'deleted' AS note FROM commands")
    call.merge(gone, call.article, on=["order_id"])
