"""`Fields`: a configuration whose values are checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dippm.errors import UnknownArchitectureError, shortened

LARGEST = 1 << 31
KNOWN_FIELDS = "The families that are known are listed in docs/language_models.md."


class Fields:
    """Values by name, where several names may stand for one property.

    Args:
        values: content of the configuration.
        model: name of the model, for messages.
    """

    def __init__(self, values: Mapping[str, Any], model: str) -> None:
        self.values, self.model = values, model
        family = values.get("model_type")
        self.family = family.casefold() if isinstance(family, str) else ""

    def has(self, *names: str) -> bool:
        """Return whether one of the fields exists and is not null."""
        return any(self.values.get(name) is not None for name in names)

    def size(self, *names: str) -> int | None:
        """Return the first of the fields that exists, an integer of at least 0.

        Raises:
            UnknownArchitectureError: if it is not such an integer.
        """
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, list) and value and all(v == value[0] for v in value):
                value = value[0]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
                raise UnknownArchitectureError(
                    f"{self.model}: {name} is {shortened(repr(value))}, not a whole number",
                    "Correct it in the config.json; a size is a whole number above 0.",
                )
            return value
        return None

    def need(self, *names: str) -> int:
        """Return a field like `size`, which has to exist and be above 0.

        Raises:
            UnknownArchitectureError: if none of the fields exists, or it is 0.
        """
        found = self.size(*names)
        if not found:
            raise self.missing(*names)
        return found

    def flag(self, *names: str) -> bool | None:
        """Return the first of the fields that is a boolean; None without one."""
        return next((v for n in names if isinstance(v := self.values.get(n), bool)), None)

    def word(self, *names: str) -> str:
        """Return the first of the fields that is a string, in lower case; "" without one."""
        found = (self.values.get(name) for name in names)
        return next((text.casefold() for text in found if isinstance(text, str)), "")

    def row(self, name: str, length: int) -> Sequence[Any] | None:
        """Return a list with a value for each layer; None if the field does not exist.

        Raises:
            UnknownArchitectureError: if it has another length.
        """
        found = self.values.get(name)
        if not isinstance(found, list) or not found:
            return None
        if len(found) < length:
            raise UnknownArchitectureError(
                f"{self.model}: {name} has {len(found)} entries, there are {length} layers",
                "Correct one of the two in the config.json.",
            )
        return found[:length]

    def inner(self, *names: str) -> Fields | None:
        """Return the first of the fields that is a mapping; None without one."""
        for name in names:
            found = self.values.get(name)
            if isinstance(found, Mapping):
                return Fields(found, self.model)
        return None

    def missing(self, *names: str) -> UnknownArchitectureError:
        """Return the error for a missing field."""
        kind = f" of type {shortened(self.family)!r}" if self.family else ""
        others = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
        return UnknownArchitectureError(
            f"{self.model}{kind} has no {names[0]}{others} in its configuration",
            f"Write it into the config.json. {KNOWN_FIELDS}",
        )
