"""The web page: files that are served as they are, from the folder ``web``.

Invariants: the page loads nothing from elsewhere and runs no script but its own (its policy says
so to the browser); a token is never in a URL that this server sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final

from motet.actors.gateway.http import Response

_FOLDER: Final = Path(__file__).parent / "web"
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
_FILES: Final = {
    "/": "index.html",
    "/app.js": "app.js",
    "/markdown.js": "markdown.js",
    "/proto.js": "proto.js",
    "/state.js": "state.js",
    "/style.css": "style.css",
}


def web_page() -> Mapping[str, Callable[[], Response]]:
    """The answers by their paths."""
    return {path: partial(_file, name) for path, name in _FILES.items()}


@cache
def _file(name: str) -> Response:
    file = _FOLDER / name
    policy = (("content-security-policy", _POLICY),)
    return Response(200, file.read_text("utf-8"), _TYPES[file.suffix], policy)
