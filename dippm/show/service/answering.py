"""Main loop of a worker process of the pool: answers questions, and reports its progress.

The process holds only trusted data, checkpoints and canonical graphs; model files are read by the
sandboxed worker of their frontend, which it starts. It has a memory limit of its own, and ends with
the service (`start_guard`) or some time after the time limit of a question.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import sys
import traceback
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dippm.base import process
from dippm.errors import DippmError, NothingFeasibleError, UnexpectedError, UnknownFormatError

LEEWAY_S = 10.0
MOST_MEMBERS = 1000
UNPACKED = ".unpacked-"
"""Prefix of unpacked folders, followed by the process id; no upload has such a name."""
WARM_KINDS = 2
"""Number of frontends whose workers stay warm; each holds its libraries in memory."""
MARKS = ("saved_model.pb", "__model__", ".pdmodel", ".pdiparams", ".onnx", "model.json")
"""Suffixes of members by which a zip is a packed folder, not a model file itself."""


def main(folder: str, memory_limit_mb: int) -> None:
    """Answer questions from standard input until it closes."""
    requests, answers = process.own_pipes()
    guard = process.start_guard(requests, Path(folder))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.umask(0o077)
    os.environ["OMP_NUM_THREADS"] = "1"
    process.limit_memory(memory_limit_mb)
    _prepare()
    process.write_frame(answers, {"ready": True})
    usual = os.environ.get("DIPPM_CACHE_DIR")
    while True:
        try:
            question = process.read_frame(requests)
        except EOFError:
            process.leave_guard(guard, Path(folder))
            return
        process.end_after(question["limit_s"] + LEEWAY_S)
        _choose_cache(question["cache"], usual)
        process.write_frame(answers, _answer(question, answers))
        process.end_after(None)
        _keep_few_workers()


def _prepare() -> None:
    """Import common libraries, and load the default checkpoint."""
    with contextlib.suppress(DippmError):
        from dippm import api
        from dippm.decide import choice, scheduling, sharing  # noqa: F401

        api.load()


def _choose_cache(folder: str | None, usual: str | None) -> None:
    """Cache graphs of an upload in its folder, to go with it; others in the user's cache."""
    if folder or usual:
        os.environ["DIPPM_CACHE_DIR"] = folder or usual or ""
    else:
        os.environ.pop("DIPPM_CACHE_DIR", None)


def _keep_few_workers() -> None:
    from dippm.model.frontends.worker import POOL

    if len(POOL.peaks_mb()) > WARM_KINDS:
        POOL.close()


def _answer(question: Mapping[str, Any], answers: IO[bytes]) -> dict[str, Any]:
    from dippm.base.progress import listening

    def tell(stage: str) -> None:
        process.write_frame(answers, {"stage": stage[:300]})

    try:
        with listening(tell):
            name, content = VERBS[question["kind"]](question)
        document = {"schema": f"dippm.{name}/1", **content}
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
        return {"text": _as_sent(text, question)}
    except DippmError as error:
        for one in question["sources"]:
            name_as_given(error, one)
        return {"error": json.loads(_as_sent(json.dumps(error.to_dict()), question))}
    except MemoryError:
        return {
            "error": DippmError(
                "the model needs more memory than the service gives to an answer",
                "The operator of the service can raise the limit: memory_limit_mb=... .",
            ).to_dict()
        }
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        words = f"unexpected {type(error).__name__}: {error}"
        hint = "This is a bug in DIPPM: report it with the model."
        return {"error": UnexpectedError(words, hint).to_dict()}
    finally:
        for one in question["sources"]:
            if one["unpack_mb"] is not None:
                _remove_unpacked(Path(one["path"]))


def name_as_given(error: DippmError, source: Mapping[str, Any]) -> None:
    """Let an error name a path as its client gave it, not the resolved path that is read.

    Args:
        error: error about a model.
        source: the model, see `service._source`; uploads have no path of their client.
    """
    if source["unpack_mb"] is None:
        prefix = "hf-config:"
        read = (source["path"] or source["name"]).removeprefix(prefix)
        given = source["shown"].removeprefix(prefix)
        error.message = error.message.replace(read, given)
        error.hint = error.hint.replace(read, given)


def _as_sent(text: str, question: Mapping[str, Any]) -> str:
    """Replace paths of this machine in an answer.

    A path under a root becomes relative to it, and that of an upload the name that its sender gave.
    Both are an end of the path, so that what is quoted or escaped in the answer remains so.
    """
    for one in question["sources"]:
        if one["unpack_mb"] is None:
            read = json.dumps(one["path"] or one["name"], ensure_ascii=False)[1:-1]
            text = text.replace(read, json.dumps(one["inside"], ensure_ascii=False)[1:-1])
        else:
            path = Path(one["path"])
            unpacked = f"{path.parent}/{UNPACKED}{os.getpid()}/{path.name}.d"
            text = text.replace(unpacked, path.name.removesuffix(".zip"))
            text = text.replace(f"{path.parent}/", "")
    return text


def _predict(question: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from dippm import api

    arguments = dict(question["arguments"])
    with_tree, with_html = arguments.pop("tree"), arguments.pop("html")
    prediction = api.predict(_source(question["sources"][0]), **arguments, **question["limits"])
    document = prediction.to_dict()
    if with_tree:
        document["tree"] = prediction.tree.to_dict()
    if with_html:
        from dippm.show.report.predictions import render_report

        document["html"] = render_report(prediction)
    return "predict", document


def _fit(question: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from dippm import api
    from dippm.estimate.largest_batch import largest_batch_at

    arguments = question["arguments"]
    prediction = api.predict(_source(question["sources"][0]), **arguments, **question["limits"])
    c = prediction.conditions
    checkpoint = api.load(arguments["checkpoint"], device=c.device).checkpoint_for(
        c.device, c.phase
    )
    found = prediction.to_dict()
    names = ("source", "conditions", "memory_mb", "memory_bound_mb", "capacity_mb", "headroom_mb")
    return "fit", {
        "fits": prediction.fits,
        "misfit": prediction.misfit,
        "largest_batch": largest_batch_at(checkpoint.predictor, prediction.source_graph, c),
        **{name: found[name] for name in names},
        "memory_interval": found["intervals"].get("memory_mb"),
        "memory_parts": found["memory_parts"],
        "mig": found["mig"],
        "absent": found["absent"],
        "warnings": found["warnings"],
        "provenance": found["provenance"],
        "verify": found["verify"],
    }


def _choose(question: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from dippm.decide.choice import choose

    return "choose", _choice(choose, question)


def _slice(question: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from dippm.decide.choice import smallest_slice

    return "mig", _choice(smallest_slice, question)


def _choice(verb: Callable[..., Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choice; an infeasible one is an answer too, with every row."""
    source = _source(question["sources"][0])
    try:
        found = verb(source, **question["arguments"], **question["limits"])
    except NothingFeasibleError as error:
        rows: dict[str, Any] = error.choice.to_dict()
        return rows | {"error": error.to_dict()}
    document: dict[str, Any] = found.to_dict()
    return document


def _request(question: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from dippm.decide.scheduling import find_format, request_resources
    from dippm.decide.scheduling.format import parts_of
    from dippm.decide.scheduling.manifest import object_name

    arguments = dict(question["arguments"])
    name, image, kind = (arguments.pop(key) for key in ("name", "image", "format"))
    in_pod = kind.removeprefix("pod:") if kind.startswith("pod:") else None
    written = None if kind == "json" or in_pod else find_format(kind)
    shown = question["sources"][0]["inside"]
    called = object_name(name, shown)
    source = _source(question["sources"][0])
    found = request_resources(source, model=shown, **arguments, **question["limits"])
    text = written.render(found, name=called, image=image) if written else None
    document = {"format": kind, "manifest": text, **found.to_dict()}
    if in_pod:  # for the admission webhook
        parts = parts_of(in_pod)(found)
        document["pod"] = {
            "limits": dict(parts.limits),
            "annotations": dict(parts.annotations),
            "products": list(parts.products),
        }
    return "request", document


def _compare(question: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from dippm import api
    from dippm.estimate.model_list import Candidate

    arguments = dict(question["arguments"])
    framework = arguments.pop("framework")
    cases = [Candidate(_source(one), framework=framework) for one in question["sources"]]
    return "compare", api.compare(cases, **arguments, **question["limits"]).to_dict()


def _share(question: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from dippm.decide.sharing import share

    models = [_source(one) for one in question["sources"]]
    return "share", share(models, **question["arguments"], **question["limits"]).to_dict()


VERBS: dict[str, Callable[[Mapping[str, Any]], tuple[str, dict[str, Any]]]] = {
    "predict": _predict,
    "fit": _fit,
    "choose": _choose,
    "slice": _slice,
    "request": _request,
    "compare": _compare,
    "share": _share,
}


def _source(given: Mapping[str, Any]) -> str | Path:
    """Return the source for a verb: a name, or a path (that of the unpacked folder of a zip)."""
    if given["name"] is not None:
        return str(given["name"])
    path = Path(given["path"])
    if given["unpack_mb"] is None or not _is_packed_folder(path):
        return path
    _remove_unpacked(path)
    own = path.with_name(f"{UNPACKED}{os.getpid()}")
    own.mkdir()
    return unpack(path, own / f"{path.name}.d", given["unpack_mb"] << 20)


def _remove_unpacked(path: Path) -> None:
    """Remove folders that this process, or a process that has ended, unpacked from a zip.

    A kept zip may stay for long, and no limit counts its unpacked content.
    """
    for folder in path.parent.glob(f"{UNPACKED}*"):
        pid = int(folder.name.removeprefix(UNPACKED))
        if pid == os.getpid() or not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _is_packed_folder(path: Path) -> bool:
    from dippm.model.frontends import keras, pytorch

    if not zipfile.is_zipfile(path) or pytorch.accepts(path) or keras.accepts(path):
        return False  # an exported program has a "model.json", too
    try:
        with zipfile.ZipFile(path) as packed:
            return any(name.endswith(MARKS) for name in packed.namelist()[:MOST_MEMBERS])
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        return False


_DAMAGED = (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, OSError)


def unpack(path: Path, folder: Path, most: int) -> Path:
    """Unpack a zip of a model's folder, and return the folder or the one ONNX file in it.

    Args:
        path: path of the zip.
        folder: folder to create; an existing one is reused.
        most: largest total size of its files in bytes.

    Raises:
        UnknownFormatError: if it is damaged, too large, or has members that no model has.
    """
    if not folder.exists():
        made = folder.with_name(folder.name + ".part")
        made.mkdir(exist_ok=True)
        try:
            with zipfile.ZipFile(path) as packed:
                _unpack_members(packed, made, most)
        except _DAMAGED as error:
            raise _refusal(f"cannot be unpacked: {error}") from error
        else:
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    inner = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX"))]
    if len(inner) == 1 and inner[0].is_dir():
        folder = inner[0]
    onnx = sorted(folder.glob("*.onnx"))
    return onnx[0] if len(onnx) == 1 else folder


def _unpack_members(packed: zipfile.ZipFile, folder: Path, most: int) -> None:
    members = packed.infolist()
    if len(members) > MOST_MEMBERS:
        raise _refusal(f"has {len(members):,} files, more than the limit of {MOST_MEMBERS:,}")
    left = most
    for member in members:
        place = PurePosixPath(member.filename)
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _refusal("contains a link, or something that is not a file")
        if place.is_absolute() or ".." in place.parts or "\\" in member.filename:
            raise _refusal("contains a file whose path is outside of it")
        if member.is_dir():
            continue
        target = folder.joinpath(*place.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with packed.open(member) as source, target.open("xb") as file:
            while chunk := source.read(1 << 20):
                left -= len(chunk)
                if left < 0:
                    raise _refusal(f"has more than {most >> 20:,} MB unpacked")
                file.write(chunk)


def _refusal(why: str) -> UnknownFormatError:
    return UnknownFormatError(
        f"the zip {why}",
        "Pack the model's folder alone (SavedModel, Paddle, ONNX with its data), or send the file.",
    )
