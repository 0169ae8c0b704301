"""`answer_predict`: the Predict page over HTTP, plain HTML that a script fills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flask import Blueprint, Flask, Response, request

from dippm.base.written import whole_number
from dippm.errors import DippmError
from dippm.show.service.errors import BadQuestionError, TooLargeError, error_text, status_of
from dippm.show.service.jobs import Job
from dippm.show.service.questions import Predict
from dippm.show.service.service import devices_text, options_document
from dippm.show.ui.predicting import PredictSessions, as_command, as_python

PAGE = Path(__file__).with_name("predict.html").read_text(encoding="utf-8")
PIECE_BYTES = 4 << 20
QUESTION_BYTES = 64 << 10


def answer_predict(server: Flask, predicting: PredictSessions) -> None:
    """Register the routes of the Predict page.

    Args:
        server: server of the page.
        predicting: sessions that use the service.
    """
    door = Blueprint("predict", __name__, url_prefix="/predict")
    documents: dict[str, str] = {}

    @door.errorhandler(DippmError)
    def refuse(error: DippmError) -> tuple[Response, int]:
        return _json(error_text(error)), status_of(error)

    @door.get("")
    def page() -> Response:
        return Response(PAGE, mimetype="text/html")

    @door.get("/options")
    def options() -> Response:
        if "options" not in documents:
            document = options_document(predicting.settings)
            document["devices"] = [_device(one) for one in json.loads(devices_text())["devices"]]
            documents["options"] = json.dumps(document)
        _ = predicting.service  # starts the processes while the visitor still chooses
        return Response(documents["options"], mimetype="application/json")

    @door.post("/uploads")
    def begin() -> Response:
        return _json({"id": predicting.begin(request.args.get("name", ""))})

    @door.put("/uploads/<key>")
    def take(key: str) -> Response:
        size = predicting.take(key, _place(request.args.get("at", "0")), _body(PIECE_BYTES))
        return _json({"bytes": size})

    @door.post("/uploads/<key>/end")
    def end(key: str) -> Response:
        model = predicting.end(key)
        return _json({"sha256": model.sha256, "name": model.name, "bytes": model.size})

    @door.delete("/models/<key>")
    def forget(key: str) -> tuple[str, int]:
        predicting.forget(key)
        return "", 204

    @door.post("/ask/<kind>")
    def ask(kind: str) -> tuple[Response, int]:
        client = f"{request.remote_addr} page"
        answer, question = predicting.ask(kind, _body(QUESTION_BYTES), client)
        document: dict[str, Any] = {"job": None, "answer": None}
        if isinstance(question, Predict):
            name = request.args.get("name", "")[:200]
            document["command"] = as_command(question, name)
            document["python"] = as_python(question, name)
        if isinstance(answer, Job):
            document["job"] = _job(predicting, answer)
            return _json(document), 202
        document["answer"] = json.loads(answer)
        return _json(document), 200

    @door.get("/jobs/<key>")
    def job(key: str) -> Response:
        return _json(_job(predicting, predicting.service.job(key)))

    @door.get("/jobs/<key>/result")
    def result(key: str) -> Response:
        found = predicting.service.job(key)
        if found.error is not None:
            raise found.error
        return Response(found.text or _json_text(None), mimetype="application/json")

    @door.delete("/jobs/<key>")
    def cancel(key: str) -> Response:
        found = predicting.service.job(key)
        predicting.service.cancel(found)
        return _json(_job(predicting, found))

    server.register_blueprint(door)


def _place(text: str) -> int:
    try:
        return whole_number(text)
    except ValueError as error:
        raise BadQuestionError("the place of the piece is no number", "Give at=0.") from error


def _body(most: int) -> bytes:
    if (request.content_length or 0) > most:
        raise TooLargeError(f"the body has more than {most:,} bytes", "Send less at once.")
    return request.get_data(cache=False)


def _job(predicting: PredictSessions, job: Job) -> dict[str, Any]:
    return job.to_dict(predicting.service.position(job))


def _device(found: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a device in the page's list."""
    slices = [
        {"name": profile["name"], "memory_mb": profile["memory_mb"]}
        for profile in found.get("mig_profiles", ())
    ]
    return {
        "name": found["name"],
        "kind": found["kind"],
        "memory_mb": found["memory_mb"],
        "slices": slices,
    }


def _json(document: Any) -> Response:
    return Response(_json_text(document), mimetype="application/json")


def _json_text(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False)
