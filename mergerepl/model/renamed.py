"""Public names that are gone, each with the name that does its work now. Nothing answers to them."""

from typing import Final

_DISTRIBUTOR = "Distributor(PATH)"

RENAMED: Final[dict[str, dict[str, str]]] = {
    "mergerepl.transactional": {
        **{
            name: f"{_DISTRIBUTOR}.{name}"
            for name in (
                *(
                    "browse",
                    "cleanup",
                    "errors",
                    "history",
                    "pending",
                    "reinit",
                    "repair",
                    "resume",
                    "script",
                ),
                *("skip", "status", "validate"),
            )
        },
        "apply_transactional": "mergerepl.Project.load(FILE).apply",
        "distribute": f"{_DISTRIBUTOR}.deliver",
        "logreader": f"{_DISTRIBUTOR}.capture",
        "net": "Call.net",
        "read": "Subscriber(PATH).read",
        "shown": "Subscriber(PATH).first_rows",
        "warnings_of": f"{_DISTRIBUTOR}.warnings",
        **{f"Transactional{name}": name for name in ("Article", "Publication", "Subscription")},
    }
}
"""Package -> old name -> new name."""
