"""`application`: the service over HTTP, with its OpenAPI document.

A question is JSON (`application/json`), or the body is the model file itself and the question
stands in the address: `POST /v1/predict?name=model.onnx&batch=8`. The answer comes at once if it is
known, or within `wait_s`; else 202 and a job, whose address is in `Location`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dippm import __version__
from dippm.errors import DippmError
from dippm.show.service import admission
from dippm.show.service.access import COOKIE, Access
from dippm.show.service.errors import (
    BadQuestionError,
    BusyError,
    ForbiddenError,
    NoAccessError,
    NotHereError,
    ServiceError,
    TooLargeError,
    TooSlowError,
    WrongTypeError,
    error_text,
    status_of,
)
from dippm.show.service.jobs import Job
from dippm.show.service.metrics import CONTENT_TYPE, log
from dippm.show.service.questions import QUESTIONS, SHA256, Conditions, KeptModel, read_question
from dippm.show.service.service import Service, devices_text, options_document
from dippm.show.service.uploads import DEFAULT_NAME, UploadedModel

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON_BYTES = 1 << 20
WAIT_S, LONGEST_WAIT_S = 30.0, 300.0
CHUNK_S, BODY_S = 30.0, 600.0
LINGER_S = 2.0
MOST_REQUESTS = 256
LONGEST_CLIENT = 64
OWN_FIELDS = ("name", "wait_s", "keep")
"""Query parameters in addition to the fields of the question."""
FILE_TYPES = ("application/octet-stream", "application/zip", "application/x-zip-compressed", "")
OPEN_PATHS = ("/healthz",)
SUMMARIES = {
    "predict": "Latency, memory, energy and power of one model on one GPU",
    "fit": "Whether a model fits, and the largest batch that does",
    "choose": "GPUs and slices, ranked under limits",
    "slice": "The smallest sufficient MIG slice",
    "request": "The resource request for a scheduler",
    "compare": "Several models, GPUs, slices, precisions and batches",
    "share": "Processes that share one GPU, and what each does to the others",
}


def application(service: Service, access: Access) -> FastAPI:
    """Return the application.

    Args:
        service: service that answers.
        access: access rules.
    """
    app = FastAPI(
        title="DIPPM",
        version=__version__,
        description=__doc__,
        docs_url=None,  # both documentation pages load scripts from a network
        redoc_url=None,
    )
    access_control = AccessControl(service, access)
    app.add_middleware(_OuterMiddleware, access_control=access_control)
    app.add_exception_handler(DippmError, _error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _address_error)
    app.state.access_control = access_control

    for name in QUESTIONS:
        app.add_api_route(
            f"/v1/{name}",
            partial(_ask, service, name),
            methods=["POST"],
            name=name,
            summary=SUMMARIES[name],
            responses=_responses(name),
            openapi_extra=_body_of(QUESTIONS[name]),
            response_class=Response,
        )
    _add_jobs(app, service)
    _add_models(app, service)
    _add_rest(app, service)
    if service.settings.webhook != "off":
        app.add_api_route(
            "/v1/admission",
            partial(_admit, service),
            methods=["POST"],
            summary="AdmissionReview v1 in and out, for Kubernetes",
            response_class=Response,
        )
    app.openapi = partial(_openapi, app)  # type: ignore[method-assign]
    return app


class AccessControl:
    """Access rules and limits that every request has to pass."""

    def __init__(self, service: Service, access: Access) -> None:
        self.service, self.access = service, access
        self.open = 0
        self.paths = {*OPEN_PATHS, *(["/v1/admission"] * (service.settings.webhook != "off"))}

    def check(self, request: Request) -> None:
        """Refuse requests that are not allowed.

        Raises:
            ForbiddenError: if a request comes from another site or machine.
            NoAccessError: if the token is missing or wrong.
            BusyError: if too many requests are open.
        """
        host, path = request.headers.get("host", ""), request.url.path
        if path not in self.paths or request.headers.get("origin"):
            why = self.access.forbids(host, request.headers.get("origin"))
            if why is not None:
                raise ForbiddenError(why, "Ask from this machine, or start it with a token.")
            cookie = request.cookies.get(COOKIE, "")
            if not self.access.lets_in(request.headers.get("authorization", ""), cookie):
                raise NoAccessError(
                    "the token is missing or wrong",
                    "Send it as `Authorization: Bearer TOKEN`; `dippm serve` printed it.",
                )
        if self.open > MOST_REQUESTS and path not in OPEN_PATHS:
            raise BusyError(f"{self.open} requests are open", "Ask again soon.", retry_after_s=1.0)


class _OuterMiddleware:
    """Counts, times and logs each request; checks its access; answers unforeseen errors."""

    def __init__(self, app: Any, access_control: AccessControl) -> None:
        self._app, self._access_control = app, access_control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0
        has_body = {b"content-length", b"transfer-encoding"} & {key for key, _ in scope["headers"]}
        scope["dippm.unread"] = bool(has_body)

        async def reading() -> MutableMapping[str, Any]:
            message = await receive()
            if not message.get("more_body", False):
                scope["dippm.unread"] = False
            return message

        request = Request(scope, reading)

        async def noting(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", [])
                message["headers"] += _SAFE
            await send(message)

        self._access_control.open += 1
        try:
            self._access_control.check(request)
            await self._app(scope, reading, noting)
        except ClientDisconnect:
            status = 499
        except DippmError as error:
            await _error(request, error)(scope, reading, noting)
        except Exception as error:
            log("failed", "error", reason=f"{type(error).__name__}: {error}")
            if not status:
                failed = ServiceError("the service failed", "This is a bug in DIPPM: report it.")
                await _error(request, failed)(scope, reading, noting)
        finally:
            self._access_control.open -= 1
            self._note(scope, status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        metrics = self._access_control.service.metrics
        metrics.count("dippm_requests_total", route=route, code=str(status or 499))
        metrics.time("dippm_request_seconds", seconds, route=route)
        client = scope.get("client")
        log(
            "request",
            method=scope["method"] if scope["method"].isalpha() else "?",
            route=route,
            status=status or 499,
            ms=round(seconds * 1e3, 2),
            client=client[0] if client else None,
        )


_SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]


def _error(request: Request, error: Exception) -> Response:
    """Return the response to a `DippmError`."""
    assert isinstance(error, DippmError)
    status = getattr(error, "status", None) or status_of(error)
    headers = {}
    if (after := getattr(error, "retry_after_s", None)) is not None:
        headers["Retry-After"] = f"{after:.0f}"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _Refusal(error_text(error), status, headers)


class _Refusal(JSONResponse):
    """An error response that also reaches a client which is still sending its body.

    Closing a connection with unread data resets it, and the response is lost. So data that arrives
    within a moment is read and discarded before the response ends.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope.get("dippm.unread", False):
            await super().__call__(scope, receive, send)
            return
        headers = [*self.raw_headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while scope["dippm.unread"]:
                    await receive()
        await send({"type": "http.response.body", "body": b""})


def _http_error(request: Request, error: Exception) -> Response:
    """Return the response to a wrong path or method."""
    assert isinstance(error, HTTPException)
    words = {404: "there is nothing here", 405: "this path has another method"}
    found = NotHereError(words.get(error.status_code, str(error.detail)), "GET /openapi.json")
    return JSONResponse(error_text(found), error.status_code, error.headers)


def _address_error(request: Request, error: Exception) -> Response:
    """Return the response to a wrong field in the address."""
    assert isinstance(error, RequestValidationError)
    places = ((".".join(map(str, one["loc"][1:])), one["msg"]) for one in error.errors())
    words = "; ".join(f"{place}: {why}" for place, why in places)
    return _error(request, BadQuestionError(words[:500], "GET /openapi.json has every field."))


async def _ask(service: Service, name: str, request: Request) -> Response:
    """Answer a question, or return a job that will."""
    kind = QUESTIONS[name]
    wait_s = _seconds(request.query_params.get("wait_s"))
    client = _client(request)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().casefold()
    if content_type == "application/json":
        text = await _small_body(request, JSON_BYTES)
        question = read_question(kind, text)
        found = await run_in_threadpool(service.find_models, question)
    elif content_type in FILE_TYPES and _is_of_one_model(kind):
        question = _in_address(kind, request)
        service.check_room(client)
        found = [service.uploaded(await _receive(service, request))]
    else:
        raise WrongTypeError(
            f"the body is {content_type or 'of no type'}",
            "Send application/json with the question, or application/octet-stream with the file"
            " and the question in the address.",
        )
    answer = service.answer(question, found, client)
    if isinstance(answer, str):
        return _document(answer, "hit")
    try:
        await _until_ended(service, answer, request, wait_s)
        return _of_job(service, answer)
    finally:
        service.leave(answer)


def _of_job(service: Service, job: Job) -> Response:
    if job.text is not None:
        return _document(job.text, "miss")
    if job.error is not None:
        raise job.error
    job.is_detached = True
    headers = {"Location": f"/v1/jobs/{job.id}", "Retry-After": "1"}
    return JSONResponse(job.to_dict(service.position(job)), 202, headers)


def _document(text: str, how: str) -> Response:
    return Response(text, media_type="application/json", headers={"Dippm-Result": how})


async def _until_ended(service: Service, job: Job, request: Request, wait_s: float) -> None:
    """Wait for a job until a time limit, or until the client disconnects.

    Raises:
        ClientDisconnect: if the client disconnects.
    """
    event, end = job.listen(asyncio.get_running_loop())
    gone = asyncio.ensure_future(_until_gone(request))
    until = time.monotonic() + wait_s
    try:
        while not job.ended and (left := until - time.monotonic()) > 0:
            changed = asyncio.ensure_future(event.wait())
            await asyncio.wait({changed, gone}, timeout=left, return_when="FIRST_COMPLETED")
            changed.cancel()
            event.clear()
            if gone.done():
                raise ClientDisconnect
    finally:
        end()
        gone.cancel()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _chunks(request: Request, most: int) -> AsyncIterator[bytes]:
    """Yield a body in chunks.

    Raises:
        TooLargeError: if its stated length is too large, before any of it is read.
        TooSlowError: if it arrives too slowly.
    """
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise TooLargeError(
            f"the body has more than {most:,} bytes", "GET /v1/options has the limits."
        )
    until, body = time.monotonic() + BODY_S, request.stream().__aiter__()
    while True:
        left = min(CHUNK_S, until - time.monotonic())
        try:
            chunk = await asyncio.wait_for(body.__anext__(), max(left, 0.001))
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise TooSlowError("the body did not arrive in time", "Send it faster.") from error
        yield chunk


async def _small_body(request: Request, most: int) -> bytes:
    found = bytearray()
    async for chunk in _chunks(request, most):
        found += chunk
        if len(found) > most:
            raise TooLargeError(f"the body has more than {most:,} bytes", "Ask for less at once.")
    return bytes(found)


async def _receive(service: Service, request: Request, *, keep: bool = False) -> UploadedModel:
    """Receive the file in the body of a request."""
    name = request.query_params.get("name", DEFAULT_NAME)
    most_mb = service.settings.upload_mb
    with service.uploads.receive(name, most_mb) as arriving:
        async for chunk in _chunks(request, most_mb << 20):
            arriving.take(chunk)
        model = arriving.whole(keep=keep)
    service.metrics.count("dippm_uploaded_bytes_total", by=model.size)
    return model


def _in_address(kind: type[Conditions], request: Request) -> Conditions:
    """Return the question in the query parameters."""
    given: dict[str, Any] = {}
    for key, value in request.query_params.multi_items():
        if key in given:
            raise BadQuestionError(f"{key[:80]!r} occurs twice in the address", "Give it once.")
        if key not in OWN_FIELDS:
            given[key] = value.split(",") if key in kind.LISTS and "," in value else value
    if "model" in given:
        raise BadQuestionError(
            "the address names a model, and the body is another one",
            "Leave out model=..., or send the question as JSON.",
        )
    return read_question(kind, given)


def _seconds(text: str | None) -> float:
    if text is None:
        return WAIT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT_S:
        raise BadQuestionError(
            f"wait_s is {text[:40]!r}", f"Give seconds, from 0 to {LONGEST_WAIT_S:.0f}."
        )
    return seconds


def _client(request: Request) -> str:
    """Return the client of a request for the queue: its address, with its name on loopback."""
    address = request.client.host if request.client else ""
    return f"{address} {request.headers.get('dippm-client', '')[:LONGEST_CLIENT]}"


def _add_jobs(app: FastAPI, service: Service) -> None:
    """Add the routes of jobs."""

    @app.get(
        "/v1/jobs/{job_id}", summary="Progress of a job; waits up to wait_s seconds for a change"
    )
    async def job(request: Request, job_id: str, after: int = -1) -> Response:
        found = service.job(job_id)
        wait_s = _seconds(request.query_params.get("wait_s", "0"))
        event, end = found.listen(asyncio.get_running_loop())
        try:
            if not found.ended and found.version <= after:
                await asyncio.wait_for(event.wait(), wait_s or 0.001)
        except TimeoutError:
            pass
        finally:
            end()
        return JSONResponse(found.to_dict(service.position(found)))

    @app.get("/v1/jobs/{job_id}/result", summary="The answer of a finished job")
    async def result(request: Request, job_id: str) -> Response:
        return _of_job(service, service.job(job_id))

    @app.delete("/v1/jobs/{job_id}", summary="Cancel a job")
    async def cancel(request: Request, job_id: str) -> Response:
        found = service.job(job_id)
        await run_in_threadpool(service.cancel, found)
        return JSONResponse(found.to_dict(service.position(found)))


def _add_models(app: FastAPI, service: Service) -> None:
    """Add the routes of kept uploads, for several questions about one model."""

    @app.post("/v1/models", status_code=201, summary="Upload a model for later questions",
              openapi_extra=_FILE_BODY)  # fmt: skip
    async def upload(request: Request) -> Response:
        model = await _receive(service, request, keep=True)
        service.uploads.release(model)
        document = {
            "schema": "dippm.model/1",
            "sha256": model.sha256,
            "name": model.name,
            "bytes": model.size,
        }
        headers = {"Location": f"/v1/models/{model.sha256}"}
        return JSONResponse(document, 201, headers)

    @app.delete("/v1/models/{sha256}", status_code=204, summary="Keep a model no longer")
    async def forget(request: Request, sha256: str) -> Response:
        match = SHA256.fullmatch(sha256)
        if match is None:
            raise NotHereError("this is no sha256", "It has 64 hexadecimal digits.")
        await run_in_threadpool(service.uploads.forget, match[1])
        return Response(status_code=204)


def _add_rest(app: FastAPI, service: Service) -> None:
    """Add the routes for lists of options, health and metrics."""
    texts: dict[str, str] = {}

    async def once(name: str, make: Callable[[], str]) -> Response:
        if name not in texts:
            texts[name] = await run_in_threadpool(make)
        return Response(texts[name], media_type="application/json")

    @app.get("/v1/devices", summary="The known GPUs and CPUs")
    async def devices(request: Request) -> Response:
        return await once("devices", devices_text)

    @app.get("/v1/options", summary="The valid values of every option, and the limits")
    async def options(request: Request) -> Response:
        return await once("options", lambda: json.dumps(options_document(service.settings)))

    @app.get("/healthz", summary="Health of the service; needs no token")
    async def health(request: Request) -> Response:
        ready = service.metrics.value("dippm_workers_started_total") > 0
        return JSONResponse({"status": "ok" if ready else "starting", "version": __version__})

    @app.get("/metrics", summary="Metrics in the format of Prometheus")
    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


async def _admit(service: Service, request: Request) -> Response:
    """Answer the API server of a cluster before its timeout."""
    fails_open = service.settings.webhook == "open"
    text = await _small_body(request, 4 * JSON_BYTES)
    try:
        asked = admission.AdmissionReview.model_validate_json(text).request
    except (ValidationError, RecursionError) as error:
        raise BadQuestionError(
            f"this is not an AdmissionReview of {admission.API_VERSION}",
            "Kubernetes sends one: see deploy/kubernetes/webhook.yaml.",
        ) from error
    try:
        wanted = admission.wanted_by(asked)
    except ValueError as error:
        words = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            words = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        log("admission", "warning", allowed=fails_open, reason=words)
        return JSONResponse(
            admission.without_answer(asked.uid, words, fails_open=fails_open, code=422)
        )
    if isinstance(wanted, str):
        return JSONResponse(admission.review(asked.uid))
    try:
        answer = await _in_time(service, wanted.question, request)
    except DippmError as error:
        code = getattr(error, "status", None) or status_of(error)
        log("admission", "warning", allowed=fails_open, reason=error.message)
        document = admission.without_answer(asked.uid, error, fails_open=fails_open, code=code)
        return JSONResponse(document)
    patch = admission.patch_of(wanted, json.loads(answer))
    log("admission", allowed=True, patched=len(patch))
    return JSONResponse(admission.review(asked.uid, patch=patch))


async def _in_time(service: Service, question: Conditions, request: Request) -> str:
    """Return the answer for a pod; the work continues after the API server's timeout.

    When a controller creates the pod again, the answer is then ready.
    """
    given = request.query_params.get("timeout", "10s").removesuffix("s")
    limit_s = float(given) if given.isdecimal() else 10.0
    found = await run_in_threadpool(service.find_models, question)
    answer = service.answer(question, found, "admission")
    if isinstance(answer, str):
        return answer
    answer.is_detached = True
    try:
        await _until_ended(service, answer, request, max(0.2, 0.8 * limit_s))
    finally:
        service.leave(answer)
    if answer.error is not None:
        raise answer.error
    if answer.text is None:
        raise TooSlowError(
            "the model is still being converted", "The same pod will find it ready in a while."
        )
    return answer.text


_FILE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def _body_of(question: type[Conditions]) -> dict[str, Any]:
    """Return the OpenAPI description of a body: the question, or the file."""
    schema = {"$ref": f"#/components/schemas/{question.__name__}"}
    content = {"application/json": {"schema": schema}}
    if _is_of_one_model(question):
        content |= _FILE_BODY["requestBody"]["content"]
    return {"requestBody": {"required": True, "content": content}}


def _is_of_one_model(question: type[Conditions]) -> bool:
    """Return whether the body of a question can be the model file itself."""
    return "model" in question.model_fields


def _responses(name: str) -> dict[int | str, dict[str, Any]]:
    schema = {"$ref": f"#/components/schemas/{'choose' if name == 'slice' else name}"}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/error"}}}
    texts = {
        401: "No token", 403: "Not allowed", 404: "Not here", 408: "Too slow", 413: "Too large",
        415: "Neither JSON nor a known type of file", 422: "The question has no answer",
        429: "Full; see Retry-After", 503: "Ends, or lost its worker", 504: "Took too long",
        507: "No room",
    }  # fmt: skip
    return {
        200: {"description": "The answer", "content": {"application/json": {"schema": schema}}},
        202: {
            "description": "A job; see Location",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/job"}}},
        },
        **{code: {"description": words, "content": error} for code, words in texts.items()},
    }


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document: questions by pydantic, answers by the schemas of the package."""
    if app.openapi_schema is None:
        from fastapi.openapi.utils import get_openapi

        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        text = (files("dippm") / "schemas.json").read_text(encoding="utf-8")
        ours = json.loads(text.replace("#/$defs/", "#/components/schemas/"))["$defs"]
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(ours)
        questions: list[type[BaseModel]] = [*QUESTIONS.values(), KeptModel]
        for question in questions:
            found = question.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(found.pop("$defs", {}))
            schemas[question.__name__] = found
        app.openapi_schema = document
    return app.openapi_schema
