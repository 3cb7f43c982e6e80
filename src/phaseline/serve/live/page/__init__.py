"""The live page: a few files of this package, served as they are. What is asked for never becomes a path."""

from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# The page may load and call nothing but this server, and nobody may frame it.
_POLICY = "; ".join(
    [
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    ]
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def page_routes() -> list[Route]:
    """`/` and, below `/page/`, what it needs."""
    own = [file for file in files(__package__).iterdir() if _type(file.name)]
    palette = files("phaseline").joinpath("palette.css")
    return [_route("/" if file.name == "index.html" else f"/page/{file.name}", file) for file in (*own, palette)]


def _route(path: str, file: Traversable) -> Route:
    body, kind = file.read_bytes(), _type(file.name)

    async def serve(_: Request) -> Response:
        return Response(body, headers=_HEADERS, media_type=kind)

    return Route(path, serve, methods=["GET"])


def _type(name: str) -> str | None:
    return _TYPES.get(name[name.rfind(".") :])
