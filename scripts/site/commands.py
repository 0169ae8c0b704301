"""The reference of the command line, generated from the commands."""

from __future__ import annotations

import re


def pages() -> dict[str, tuple[str, str]]:
    """Return path on the site → (title, Markdown)."""
    import typer
    from typer.main import get_command

    from dippm.cli.app import app

    whole = get_command(app)
    context = typer.Context(whole, info_name="dippm")
    parts = ["# Commands", str(whole.help)]
    parts += [
        part
        for name in whole.list_commands(context)
        for part in _describe(whole.get_command(context, name), f"dippm {name}", context)
    ]
    return {"reference/commands.md": ("Commands", "\n\n".join(parts) + "\n")}


def _describe(command, name: str, parent) -> list[str]:
    """Return heading, help, usage and option table of a command and of its subcommands."""
    import typer

    context = typer.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    records = [param.get_help_record(context) for param in command.get_params(context)]
    rows = [
        f"| `{_cell(words)}` | {_cell(text).replace('<', '&lt;')} |"
        for words, text in filter(None, records)
    ]
    help_text = re.sub(r"[ \t]*\n[ \t]*", "\n", (command.help or "").replace("\b", "").strip())
    below = [
        part
        for found in (command.list_commands(context) if hasattr(command, "list_commands") else ())
        for part in _describe(command.get_command(context, found), f"{name} {found}", context)
    ]
    return [
        f"## `{name}`",
        help_text,
        f"```text\n{usage}\n```",
        "\n".join(["| option | meaning |", "|---|---|", *rows]),
        *below,
    ]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
