"""A little OpenID Connect provider over HTTP, with a key of its own and a switch for everything that can be wrong."""

from __future__ import annotations

import base64
import hashlib
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

CLIENT = "gradproof"
SECRET = "a secret: with/odd+characters"


class Provider:
    """`person` are the claims of whoever agrees; `lies` replace claims of the ID token, None leaves one out."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.issuer = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.called: str | None = None
        self.person: dict[str, Any] = {"sub": "248289761001", "preferred_username": "Ada.L", "name": "Ada Lovelace"}
        self.lies: dict[str, Any] = {}
        self.refusal: dict[str, str] | None = None
        self.userinfo: dict[str, Any] | None = None
        self.key: RSAKey | ECKey | OctKey = RSAKey.generate_key(2048, {"kid": "1", "use": "sig"})
        self.algorithm = "RS256"
        self.published: list[Any] | None = None
        self.asked: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}
        self._server = uvicorn.Server(uvicorn.Config(self._app(), log_level="warning", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def rotate(self) -> None:
        """Sign with another key from now on; only the new one is published."""
        self.key = RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "use": "sig"})

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/.well-known/openid-configuration")
        def configuration() -> dict[str, Any]:
            self.asked.append("configuration")
            told: dict[str, Any] = {
                "issuer": self.called or self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
            }
            return told if self.userinfo is None else {**told, "userinfo_endpoint": f"{self.issuer}/userinfo"}

        @app.get("/keys")
        def keys() -> dict[str, Any]:
            self.asked.append("keys")
            published = self.published or [self.key]
            return dict(KeySet(published).as_dict(private=False))

        @app.get("/authorize")
        def authorize(request: Request) -> Response:
            query = dict(request.query_params)
            assert query["client_id"] == CLIENT
            assert query["response_type"] == "code"
            assert query["code_challenge_method"] == "S256"
            assert "openid" in query["scope"].split()
            answer = {"state": query["state"], "iss": self.issuer}
            if self.refusal is not None:
                return RedirectResponse(f"{query['redirect_uri']}?{urlencode({**answer, **self.refusal})}", 303)
            code = secrets.token_urlsafe(16)
            self._codes[code] = query
            return RedirectResponse(f"{query['redirect_uri']}?{urlencode({**answer, 'code': code})}", 303)

        @app.post("/token")
        async def token(request: Request) -> Response:
            form = dict(parse_qsl((await request.body()).decode()))
            pair = base64.b64decode(request.headers.get("authorization", "Basic ").removeprefix("Basic ")).decode()
            expected = "gradproof:a%20secret%3A%20with%2Fodd%2Bcharacters"
            if pair != expected:
                return JSONResponse({"error": "invalid_client"}, 401)
            begun = self._codes.pop(form["code"], None)
            challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode()
            if begun is None or begun["code_challenge"] != challenge.rstrip("="):
                return JSONResponse(
                    {"error": "invalid_grant", "error_description": "the code is used or not yours"}, 400
                )
            assert form["redirect_uri"] == begun["redirect_uri"]
            return JSONResponse(
                {"access_token": "at", "token_type": "Bearer", "id_token": self._id_token(begun["nonce"])}
            )

        @app.get("/userinfo")
        def userinfo(request: Request) -> dict[str, Any]:
            assert request.headers["authorization"] == "Bearer at"
            return dict(self.userinfo or {})

        return app

    def _id_token(self, nonce: str) -> str:
        now = int(time.time())
        claims: Mapping[str, Any] = {
            "iss": self.issuer, "aud": CLIENT, "exp": now + 300, "iat": now, "nonce": nonce, **self.person, **self.lies,
        }  # fmt: skip
        said = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode({"alg": self.algorithm, "kid": self.key.kid}, said, self.key, algorithms=[self.algorithm])

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()
