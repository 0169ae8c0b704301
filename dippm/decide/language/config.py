"""Reads the configuration of a language model from any of its sources.

Sources are a `config.json` of the Hugging Face hub, the folder that holds one, a mapping, and an
object with `to_dict` (configurations of `transformers`, which is not imported).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dippm.base.files import expand_home, open_regular
from dippm.decide.language.architecture import Decoder
from dippm.decide.language.reading import decoder_from
from dippm.errors import ModelFileError

FILE = "config.json"
MOST_BYTES = 4 << 20
"""A configuration has a few kilobytes; label lists of classifiers have more."""


def read_decoder(source: Any) -> Decoder:
    """Return the language model that a configuration describes.

    Args:
        source: path of a `config.json` or of its folder, a mapping, an object with `to_dict`, or
            a `Decoder`.

    Raises:
        ModelNotFoundError: if the path does not exist.
        ModelFileError: if the file is not a JSON object.
        UnknownArchitectureError: if it does not describe a supported decoder; names what is
            missing.
    """
    if isinstance(source, Decoder):
        return source
    if isinstance(source, str | os.PathLike):
        path = Path(expand_home(source))
        named = path.parent.name if path.name == FILE else path.stem
        if path.is_dir():
            path, named = path / FILE, path.name
        return decoder_from(_read(path), named or "config")
    if isinstance(source, Mapping):
        return decoder_from(source, "config")
    to_dict = getattr(source, "to_dict", None)
    found = to_dict() if callable(to_dict) else None
    if not isinstance(found, Mapping):
        raise ModelFileError(
            f"{type(source).__name__} is not a configuration of a language model",
            "Give the path of a config.json or of its folder, or its content as a mapping.",
        )
    return decoder_from(found, type(source).__name__.removesuffix("Config"))


def _read(path: Path) -> Mapping[str, Any]:
    with open_regular(path) as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ModelFileError(
            f"{path} has more than {MOST_BYTES >> 20} MiB: it is not a configuration",
            "Give the config.json of a language model.",
        )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{path} is not JSON: {error}", "Give the config.json of a language model."
        ) from error
    if not isinstance(found, dict):
        raise ModelFileError(
            f"{path} contains no JSON object", "Give the config.json of a language model."
        )
    return found
