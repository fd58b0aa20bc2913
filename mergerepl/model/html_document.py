"""One self-contained HTML page: no network, no other file, no code but its own.

The page's security policy allows only its own style and script, by their hashes. So no value, name or key can become code;
`escape` what stands in the body, and put data for the script into `data`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape


def html_document(
    title: str, *, style: str, script: str, body: str, data: tuple[str, object] | None = None
) -> str:
    """Return a page. `body` is HTML; `data` is the id of a script element with JSON, and its value."""
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    stated = (
        f'<script type="application/json" id="{data[0]}">{script_json(data[1])}</script>\n' if data else ""
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
{stated}<script>{script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def script_json(value: object) -> str:
    """Return JSON that is safe inside an HTML script element."""
    text = json.dumps(value, ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
