"""Procedures of the user's own, as `--procedures tests.transactional.feed_procedures` imports them.

`audit_update` is that of docs/transactional.md, executed as it stands there.
"""

import re
from pathlib import Path

from mergerepl import transactional as tr

PAGE = Path(__file__).parents[2] / "docs" / "transactional.md"
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
(AUDIT,) = (text for text in CODE if "@tr.procedure" in text)
exec(AUDIT)


@tr.procedure("soften_delete", operation="delete", call="CALL", columns=None)
def soften_delete(call: tr.Call) -> None:
    """Mark a row as deleted instead of deleting it."""
    call.require_rows()
    gone = call.sql("SELECT pkc1 AS order_id, 'deleted' AS note FROM commands")
    call.merge(gone, call.article, on=["order_id"])
