"""The ASGI app: routes over an engine's client."""

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from phaseline.files.tokenizer import Tokenizer
from phaseline.serve.config import ServeConfig
from phaseline.serve.engine_client import EngineClient, State


def create_app(client: EngineClient, config: ServeConfig, tokenizer: Tokenizer) -> FastAPI:
    """Build the app."""
    app = FastAPI(title="Phaseline", docs_url=None, redoc_url=None)

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> JSONResponse:
        body = {"status": client.state.value, "loaded_bytes": client.loading.done, "total_bytes": client.loading.total}
        if client.state is State.READY:
            return JSONResponse(body)
        return JSONResponse(body, 503, headers={"Retry-After": "1"})

    return app
