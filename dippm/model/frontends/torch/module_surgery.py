"""A module with other parts in the place of some of its own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def with_parts(
    module: nn.Module, parts: Mapping[str, nn.Module | None], path: str = ""
) -> nn.Module:
    """Return a shallow copy of a module with these parts replaced.

    Args:
        module: what stays as it is; parents of replaced parts are copied.
        parts: by path.
        path: of the module itself in these paths.
    """
    copied = module.__class__.__new__(module.__class__)
    copied.__dict__ = {**module.__dict__, "_modules": {}}
    for name, part in module._modules.items():
        inner = f"{path}.{name}" if path else name
        if part is None or inner in parts:
            copied._modules[name] = parts.get(inner)
        elif any(other.startswith(inner + ".") for other in parts):
            copied._modules[name] = with_parts(part, parts, inner)
        else:
            copied._modules[name] = part
    return copied
