"""List what ships with the package: configs, comparisons, objectives and tasks."""

import argparse
import ast
from collections.abc import Callable, Iterator
from textwrap import shorten

from t5x_lite.progress import columns, say

EXAMPLE = "t5x_lite list objectives"
_WIDTH = 88  # characters per line


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    help = "what to list; default: everything"
    command.add_argument("what", nargs="?", choices=list(_LISTS), help=help)


def run(args: argparse.Namespace) -> None:
    """Print the name and the meaning of everything that ships."""
    for what in [args.what] if args.what else _LISTS:
        entries = list(_LISTS[what]())
        say(f"{what} ({len(entries)})")
        width = max((len(name) for name, _ in entries), default=0)
        room = max(_WIDTH - width - 4, 20)
        shown = (
            (f"  {name}", shorten(meaning.rstrip("."), room, placeholder="…"))
            for name, meaning in entries
        )
        say(columns(shown, "<<"))


def first_sentence(docstring: str | None) -> str:
    """Return a docstring up to the first full stop outside of brackets that ends a sentence.

    >>> first_sentence("Like Raffel et al. (2020, §3. Objectives). More.")
    'Like Raffel et al. (2020, §3. Objectives).'
    """
    text = " ".join((docstring or "").strip().partition("\n\n")[0].split())
    depth = 0
    for index, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        is_end = letter == "." and not depth and text[index + 1 : index + 2] in ("", " ")
        if is_end and not text[:index].endswith((" al", "i.i.d")):
            return text[: index + 1]
    return text


def _config_files(directory: str) -> Iterator[tuple[str, str]]:
    from t5x_lite.config.files import ROOTS

    root = next((root / "configs" for root in ROOTS if (root / "configs").is_dir()), None)
    if root is None:
        return
    for path in sorted((root / directory).glob("*.py")):
        tree = ast.parse(path.read_text())
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        if "get_config" in functions:
            name = path.relative_to(root).with_suffix("").as_posix()
            yield name, first_sentence(ast.get_docstring(tree))


def _configs() -> Iterator[tuple[str, str]]:
    return _config_files(".")


def _comparisons() -> Iterator[tuple[str, str]]:
    return _config_files("compare")


def _objectives() -> Iterator[tuple[str, str]]:
    from t5x_lite.data.objectives import OBJECTIVES

    for name, objective in OBJECTIVES.items():
        yield name, first_sentence(objective.__doc__)


def _tasks() -> Iterator[tuple[str, str]]:
    from t5x_lite.data.tasks.kinds.table import KINDS
    from t5x_lite.data.tasks.load import shipped_tasks

    for name, settings in shipped_tasks().items():
        yield name, f"{settings.get('kind', 'classify')}: {settings['source']}"
    for name, kind in KINDS.items():
        yield f"{name}(FILE, …)", kind.meaning


_LISTS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "configs": _configs,
    "compare": _comparisons,
    "objectives": _objectives,
    "tasks": _tasks,
}
