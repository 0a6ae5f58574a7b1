"""The pages of the manual that are made from the code when it is built: an mkdocs hook.

Pages of reference/ are whole; in written pages a line <!-- insert: NAME --> stands for a table or a
figure. Nothing of it is committed, so nothing of it can go stale.
"""

import argparse
import ast
import dataclasses
import html
import inspect
import io
import os
import re
import runpy
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

os.environ.setdefault("JAX_PLATFORMS", "cpu")
ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "t5x_lite"
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from mkdocs.structure.files import File  # noqa: E402

from t5x_lite import api, errors  # noqa: E402
from t5x_lite import config as schema  # noqa: E402
from t5x_lite.commands import line as command_line  # noqa: E402
from t5x_lite.commands.list_ import first_sentence  # noqa: E402
from t5x_lite.config.ranges import Range  # noqa: E402
from t5x_lite.config.roles import ADJUSTABLE, LOCAL, RESUMABLE, settings_with  # noqa: E402
from t5x_lite.data import rng  # noqa: E402
from t5x_lite.data.objectives import OBJECTIVES  # noqa: E402
from t5x_lite.data.objectives.mixture import parse_objective  # noqa: E402
from t5x_lite.data.objectives.table import table as objectives_table  # noqa: E402
from t5x_lite.data.rows import layouts  # noqa: E402
from t5x_lite.data.rows.row_plan import plan_rows  # noqa: E402
from t5x_lite.inference import generate as generation  # noqa: E402
from t5x_lite.model.masks import AttentionMask  # noqa: E402
from t5x_lite.parallel.axes import AXES  # noqa: E402

# What mkdocs calls.


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put what is generated where a page asks for it."""
    return re.sub(r"<!-- insert: (.+?) -->", lambda match: INSERTS[match[1]](), markdown)


# Docstrings and comments, as Markdown.


def prose(text: str) -> str:
    """Plain text as Markdown: what would be markup is escaped, outside of `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [_escaped(part) for part in parts[::2]]
    return "".join(parts)


def _escaped(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("*", r"\*")
    return re.sub(r"_{3,}", lambda blank: f"`{blank[0]}`", text)


def sentence(text: str) -> str:
    """Prose that begins with a capital and ends in a full stop, unless it begins with a name."""
    text = " ".join(text.split())
    if not text:
        return ""
    if re.match(r"[a-z]{2,}(-[a-z]+)*[,;]?( |$)", text):
        text = text[0].upper() + text[1:]
    return prose(text if text.endswith((".", "…", "!", "?")) else text + ".")


class Docstring(NamedTuple):
    """A docstring in its parts."""

    text: str
    sections: dict[str, dict[str, str]]  # "Args" → name → meaning
    examples: str

    @classmethod
    def parse(cls, docstring: str | None) -> "Docstring":
        """In Google's style: text, then Args, Returns, Raises, then >>> examples."""
        text = inspect.cleandoc(docstring or "")
        text, separator, rest = text.partition("\n>>> ")
        examples = separator.lstrip("\n") + rest
        text, *sections = re.split(r"^(Args|Returns|Raises|Attributes):\n", text, flags=re.M)
        parsed = {}
        for title, body in zip(sections[::2], sections[1::2], strict=True):
            parsed[title] = _parse_section(body)
        return cls(text.strip(), parsed, examples.strip())

    def markdown(self, skip: tuple[str, ...] = ()) -> str:
        """Return everything else as Markdown."""
        parts = [_paragraphs(self.text)]
        for title, entries in self.sections.items():
            if title in skip:
                continue
            lines = [entry(code(name), "", meaning) for name, meaning in entries.items() if name]
            parts.append("**Arguments**" if title == "Args" else f"**{title}**")
            if "" in entries:
                parts.append(sentence(entries[""]))
            if lines:
                parts.append(entries_block(lines))
        if self.examples:
            parts.append(f"```pycon\n{self.examples}\n```")
        return "\n\n".join(parts)


def _parse_section(body: str) -> dict[str, str]:
    """Names and meanings; "" is the name of what has none."""
    entries: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent(body).splitlines():
        match = re.match(r"([\w, *]+): (.*)", line)
        if match and not line.startswith(" "):
            name, line = match[1], match[2]
        entries[name] = f"{entries.get(name, '')} {line.strip()}".strip()
    return entries


def _paragraphs(text: str) -> str:
    """Paragraphs that are indented are code."""
    made = []
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("    "):
            made.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
        else:
            made.append(prose(" ".join(paragraph.split())))
    return "\n\n".join(made)


def code(text: Any, anchor: str = "") -> str:
    """Inline code, with an anchor where one is given."""
    text = str(text)
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" + (f"{{ #{anchor} }}" if anchor else "")


NOTHING = '<span class="nothing"></span>'  # in a list, where there is nothing to say


def entry(name: str, values: str, meaning: str) -> str:
    """One entry of a list: a name, what it may be, what it means."""
    shown = f' <span class="values">{values}</span>' if values else ""
    return f"{name}{shown}\n:   {sentence(meaning) or NOTHING}\n"


def entries_block(entries: list[str]) -> str:
    """A list of entries."""
    return '<div class="entries" markdown>\n\n' + "\n".join(entries) + "\n</div>"


def markdown_table(heading: list[str], rows: list[list[str]], align: str = "") -> str:
    """A table; align: one letter for each column, l or r."""
    align = align or "l" * len(heading)
    dashes = ["---" if letter == "l" else "--:" for letter in align]
    lines = [f"| {' | '.join(cells)} |" for cells in [heading, dashes, *rows]]
    return "\n".join(lines)


# The source of dataclasses, with its comments.


def comments_by_line(source: str) -> dict[int, str]:
    """The comments of a file by line, without their #."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def field_comments(source: str, class_name: str) -> dict[str, str]:
    """Return the comments after and above each field of a dataclass."""
    comments, lines = comments_by_line(source), source.splitlines()
    fields = {}
    for node in _class(source, class_name).body:
        if not isinstance(node, ast.AnnAssign):
            continue
        above = node.lineno - 1
        while lines[above - 1].strip().startswith("#"):
            above -= 1
        numbers = range(above + 1, node.end_lineno + 1)
        said = [comments[number] for number in numbers if number in comments]
        fields[node.target.id] = " ".join(said)
    return fields


def choice_comments(source: str) -> dict[str, dict[str, str]]:
    """Return the comments after the choices of a Literal: {"Positions": {"rotary": …}}."""
    comments = comments_by_line(source)
    found = {}
    for node in ast.parse(source).body:
        is_literal = (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Subscript)
            and ast.unparse(node.value.value) == "Literal"
        )
        if is_literal:
            choices = [part for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            found[node.targets[0].id] = {
                choice.value: comments[choice.lineno]
                for choice in choices
                if choice.lineno in comments
            }
    return found


def _class(source: str, name: str) -> ast.ClassDef:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise ValueError(f"no class {name}")


def describe_values(default: Any, kind: Any) -> str:
    """A default and what else a value may be, as a person reads it."""
    shown = code(default if isinstance(default, str) and default else repr(default))
    metadata = ()
    if get_origin(kind) is Annotated:
        kind, *metadata = get_args(kind)
    if get_origin(kind) is Literal:
        others = [choice for choice in get_args(kind) if choice != default]
        listed = " ".join(code(choice or "''") for choice in others)
        return f"= {shown}, or {listed}" if others else f"= {shown}"
    if kind is bool:
        return f"= {shown}, or {code(not default)}"
    ranges = [_plain_numbers(str(part)) for part in metadata if isinstance(part, Range)]
    return " · ".join([f"= {shown}", *ranges])


def _plain_numbers(text: str) -> str:
    """Numbers as people write them: 0 and not 0.0, 1,000,000 and not 1000000000.0."""
    return re.sub(r"-?\d+\.?\d*(e-?\d+)?", lambda number: f"{float(number[0]):,.12g}", text)


# reference/settings.md


def settings_page() -> str:
    """Every setting of the schema."""
    source = (PACKAGE / "config/schema.py").read_text()
    parts = [
        "# Settings",
        "Every setting of a run, with its default and what it may be. In a config file it is "
        "`config.KEY = VALUE`, on the command line `--config.KEY=VALUE`. The dataclasses of "
        "`t5x_lite/config/schema.py` are the one place where they are defined; this page is made "
        "from them.",
    ]
    parts += _settings_of(schema.RunConfig, source, "", "A run")
    parts.append("## A comparison { #compare }")
    parts.append(_class_doc(schema.CompareConfig))
    parts.append(_entries_of(schema.CompareConfig, source, ""))
    return "\n\n".join(parts)


def _settings_of(kind: type, source: str, prefix: str, title: str) -> Iterator[str]:
    yield f"## {title}"
    yield _class_doc(kind)
    yield _entries_of(kind, source, prefix)
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(field.default):
            key = f"{prefix}{field.name}"
            yield from _settings_of(type(field.default), source, f"{key}.", f"{key}")


def _class_doc(kind: type) -> str:
    return Docstring.parse(kind.__doc__).markdown()


def _entries_of(kind: type, source: str, prefix: str) -> str:
    comments = field_comments(source, kind.__name__)
    of_choices = choice_comments(source)
    hints, entries = schema.type_hints(kind), []
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(field.default):
            continue
        name = f"{prefix}{field.name}"
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        values = describe_values(default, hints[field.name])
        choices = of_choices.get(_alias_of(source, kind.__name__, field.name), {})
        listed = [f"    - `{choice}`: {prose(said)}\n" for choice, said in choices.items()]
        described = entry(code(name, name), values, comments[field.name])
        entries.append(described + ("\n" + "".join(listed) if listed else ""))
    return entries_block(entries)


def _alias_of(source: str, class_name: str, field: str) -> str:
    """The annotation of a field, as it is written."""
    for node in _class(source, class_name).body:
        if isinstance(node, ast.AnnAssign) and node.target.id == field:
            return ast.unparse(node.annotation)
    return ""


# reference/commands.md


def commands_page() -> str:
    """Every command with its options."""
    main = command_line.parser()
    (commands,) = [
        action for action in main._actions if isinstance(action, argparse._SubParsersAction)
    ]
    summary = [[f"[`{name}`](#{name})", prose(_summary(name))] for name in commands.choices]
    parts = [
        "# Commands",
        "`t5x_lite COMMAND`, or `python -m t5x_lite COMMAND`; each answers `--help`. What is wrong "
        "with a command, a setting or a file is said in one line, and the "
        "[exit code](exit-codes.md) says of what kind it is.",
        markdown_table(["command", "what it does"], summary),
        "`train` runs as several processes with `launch/local N train …`: see "
        "[many devices](../how-to/many-devices.md).",
    ]
    for name, command in commands.choices.items():
        parts += [f"## {name} {{ #{name} }}", sentence(_summary(name))]
        usage = " ".join(command.format_usage().removeprefix("usage: ").split())
        usage = re.sub(r" (?=[^\[\]]*\])", "\u00a0", usage)  # no break within brackets
        parts.append(f"```text\n{textwrap.fill(usage, 76, subsequent_indent='    ')}\n```")
        entries = [_option(action, name) for action in command._actions if action.dest != "help"]
        parts.append(entries_block(entries))
        note, _, example = (command.epilog or "").rpartition("example:\n")
        if note:
            parts.append(prose(" ".join(note.split())) + " See [settings](settings.md).")
        parts.append(f"```text\n{example.strip()}\n```")
    return "\n\n".join(parts)


def _summary(name: str) -> str:
    return " ".join((command_line.COMMANDS[name].__doc__ or "").split())


def _option(action: argparse.Action, command: str) -> str:
    name = ", ".join(action.option_strings) or action.metavar or action.dest.upper()
    anchor = f"{command}-{action.dest.replace('_', '-')}"
    values = []
    if action.choices:
        values.append(" ".join(map(code, action.choices)))
    elif action.nargs != 0 and action.option_strings:
        values.append(code(action.metavar or action.dest.upper()))
    if action.default not in (None, "", [], False, argparse.SUPPRESS):
        values.append(f"default {code(action.default)}")
    return entry(code(name, anchor), " · ".join(values), action.help or "")


# reference/python.md


def python_page() -> str:
    """Return the page on what `import t5x_lite` offers."""
    import t5x_lite

    names = sorted(t5x_lite.__all__, key=lambda name: (name == "LanguageModel", name))
    parts = [
        "# Python",
        "What `import t5x_lite` offers. The import itself takes no time: jax is loaded when it is "
        "first needed.",
        _module_example(t5x_lite.__doc__ or ""),
    ]
    for name in names:
        if name == "LanguageModel":
            continue
        function = inspect.unwrap(getattr(t5x_lite, name))
        tree = ast.parse(Path(inspect.getsourcefile(function)).read_text())
        node = _function(tree, function.__name__)
        parts.append(_function_markdown(node, f"t5x_lite.{name}", 2))
    parts += ["## LanguageModel", _class_doc(api.LanguageModel)]
    for node in _class((PACKAGE / "api.py").read_text(), "LanguageModel").body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
        if "overload" in decorators:
            continue
        is_attribute = bool(decorators & {"property", "cached_property"})
        parts.append(_function_markdown(node, f"model.{node.name}", 3, is_attribute))
        if node.name == "generate":
            parts += ["Its options, and those of `stream`:", _generation_options()]
    return "\n\n".join(parts)


def _module_example(docstring: str) -> str:
    lines = re.findall(r"^    .*$", docstring, re.M)
    return "```python\nimport t5x_lite\n\n" + textwrap.dedent("\n".join(lines)) + "\n```"


def _function(tree: ast.Module, name: str) -> ast.FunctionDef:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise ValueError(f"no function {name}")


def _function_markdown(
    node: ast.FunctionDef, name: str, level: int, is_attribute: bool = False
) -> str:
    title = name.removeprefix("t5x_lite.").removeprefix("model.")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if is_attribute:
        signature = f"{name}: {ast.unparse(node.returns) if node.returns else 'Any'}"
    else:
        signature = f"{name}({', '.join(_parameters(node.args))}){returns}"
        if len(signature) > 78:
            lines = "".join(f"    {parameter},\n" for parameter in _parameters(node.args))
            signature = f"{name}(\n{lines}){returns}"
    docstring = Docstring.parse(ast.get_docstring(node))
    anchor = name.removeprefix("t5x_lite.").replace(".", "-").replace("_", "-")
    heading = f"{'#' * level} {title} {{ #{anchor} }}"
    signature = signature.replace("'", '"')
    return f"{heading}\n\n```python\n{signature}\n```\n\n{docstring.markdown()}"


def _parameters(arguments: ast.arguments) -> list[str]:
    """Each parameter with its annotation and default, without self."""
    positional = [parameter for parameter in arguments.args if parameter.arg != "self"]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    made = []
    for parameter, default in zip(positional, defaults, strict=True):
        text = ast.unparse(parameter)
        if default is not None:
            equals = " = " if parameter.annotation else "="
            text += equals + ast.unparse(default)
        made.append(text)
    if arguments.vararg:
        made.append(f"*{ast.unparse(arguments.vararg)}")
    if arguments.kwarg:
        made.append(f"**{ast.unparse(arguments.kwarg)}")
    return made


def _generation_options() -> str:
    source = (PACKAGE / "inference" / "generate.py").read_text()
    helps = {action.dest: action.help or "" for action in _generate_actions()}
    comments = field_comments(source, "Options")
    entries = []
    for name, kind in schema.type_hints(generation.Options).items():
        default = getattr(generation.Options(), name)
        meaning = helps.get(name) or comments[name]
        entries.append(entry(code(name), describe_values(default, kind), meaning))
    return entries_block(entries)


def _generate_actions() -> list[argparse.Action]:
    (commands,) = [
        action
        for action in command_line.parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return commands.choices["generate"]._actions


# reference/objectives.md

ARCHITECTURES = get_args(schema.Architecture)
_LENGTHS = {
    "encoder": schema.Lengths(sequence_length=512),
    "decoder": schema.Lengths(sequence_length=512),
    "prefix_decoder": schema.Lengths(sequence_length=512),
    "encoder_decoder": schema.Lengths(inputs=512, targets=512),
}


def objectives_page() -> str:
    """Every objective with its options, its examples and what its rows read."""
    parts = [
        "# Objectives",
        "The values of the setting [`objective`](settings.md#objective): a name, or a name with "
        "options, `span_corruption(mean_span_length=8)`, or a sum with rates, "
        "`0.5 * span_corruption + 0.5 * prefix_lm`. What they have in common is told in "
        "[concepts](../concepts/objectives.md); how to write one, in "
        "[your own objective](../how-to/own-objective.md).",
        "The tables say how many raw tokens a row of 512 positions reads (512 and 512 on an "
        "encoder-decoder), and the most inputs, targets and sentinels that they become.",
    ]
    for name, function in OBJECTIVES.items():
        docstring = Docstring.parse(function.__doc__)
        parts.append(f"## {name} {{ #{name} }}")
        parts.append(_paragraphs(docstring.text))
        options = _objective_options(function, docstring)
        if options:
            parts += ["**Options**", entries_block(options)]
        if docstring.examples:
            parts += ["**Examples**, letters as tokens", f"```pycon\n{docstring.examples}\n```"]
        parts += ["**Rows**", _windows_table(name)]
    return "\n\n".join(parts)


def _objective_options(function: Any, docstring: Docstring) -> list[str]:
    meanings = {}
    for names, meaning in docstring.sections.get("Args", {}).items():
        for name in names.split(", "):
            meanings[name] = meaning
    entries = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            values = describe_values(parameter.default, parameter.annotation)
            entries.append(entry(code(name), values, meanings.get(name, "")))
    return entries


def _windows_table(name: str) -> str:
    """Return the table of what a row of 512 positions a stack holds, for each architecture."""
    rows = []
    for architecture in ARCHITECTURES:
        reason = refusal(name, architecture)
        if reason:
            continue
        (member,) = plan_rows(name, architecture, _LENGTHS[architecture]).members
        bound = member.objective.bound(member.window)
        cells = [f"`{architecture}`", member.window, bound.inputs, bound.targets, bound.sentinels]
        rows.append(list(map(str, cells)))
    heading = ["on", "raw tokens", "inputs ≤", "targets ≤", "sentinels ≤"]
    return markdown_table(heading, rows, "lrrrr")


def refusal(objective: str, architecture: str) -> str:
    """Return why an objective cannot be laid out on an architecture; empty if it can."""
    try:
        plan_rows(objective, architecture, _LENGTHS[architecture])
    except errors.UserError as error:
        return str(error).partition(f"architecture {architecture}: ")[2]
    return ""


def layout_table() -> str:
    """Which objective runs on which architecture."""
    specs = []
    for name in OBJECTIVES:
        specs.append(name)
        if name == "fill_in_the_middle":
            specs.append("fill_in_the_middle(fim_rate=1)")
    rows = []
    for spec in specs:
        marks = ["" if refusal(spec, architecture) else "✓" for architecture in ARCHITECTURES]
        rows.append([f"`{spec}`", *marks])
    heading = ["objective", *(name.replace("_", " ") for name in ARCHITECTURES)]
    return markdown_table(heading, rows, "lllll")


def traits_table() -> str:
    """Return the table of the traits that objectives declare, without defaults."""
    rows = []
    for name in OBJECTIVES:
        objective = parse_objective(name)
        traits = objective.traits
        differing = [
            f"`{field.name}={getattr(traits, field.name)}`"
            for field in dataclasses.fields(traits)
            if getattr(traits, field.name) != field.default
        ]
        bound = objective.bound(512)
        cells = [bound.inputs, bound.targets, bound.sentinels]
        rows.append([f"`{name}`", *map(str, cells), ", ".join(differing)])
    heading = ["objective", "inputs", "targets", "sentinels", "traits"]
    return markdown_table(heading, rows, "lrrrl")


# reference/presets.md


def presets_page() -> str:
    """The configs that ship, sizes of the literature, modifications."""
    published = runpy.run_path(str(ROOT / "configs" / "published.py"))
    modifications = runpy.run_path(str(ROOT / "configs" / "modifications.py"))
    rows = []
    for name, size in published["SIZES"].items():
        note = f"{size.source}" + (f" Not met: {size.why_not}." if size.why_not else "")
        rows.append([f"`{name}`", f"`{size.recipe}`", size.printed, prose(note)])
    changed = []
    for name, (settings, millions) in modifications["MODIFICATIONS"].items():
        differences = ", ".join(f"`{key}={value!r}`" for key, value in settings.items())
        changed.append([f"`{name}`", differences, str(millions)])
    parts = ["# Presets", "Configs that ship, by the names that `--config` takes."]
    parts.append(markdown_table(["config", "what it is"], list(_configs())))
    parts += ["## published:NAME", _first_paragraphs(published["__doc__"])]
    parts.append(markdown_table(["name", "recipe", "parameters", "source"], rows, "llrl"))
    parts += ["## modifications:NAME", _first_paragraphs(modifications["__doc__"])]
    heading = ["name", "differs in model.…", "parameters, millions"]
    parts.append(markdown_table(heading, changed, "llr"))
    return "\n\n".join(parts)


def _configs() -> Iterator[list[str]]:
    for path in sorted((ROOT / "configs").rglob("*.py")):
        name = path.relative_to(ROOT / "configs").with_suffix("").as_posix()
        if name not in ("published", "modifications"):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            yield [f"`{name}`", prose(first_sentence(docstring))]


def _first_paragraphs(docstring: str) -> str:
    """Without the command at the end."""
    return _paragraphs(docstring.partition("\n\npython -m")[0])


# reference/exit-codes.md


def exit_codes_page() -> str:
    """The exit codes that scripts can rely on."""
    source = (PACKAGE / "errors.py").read_text()
    comments = comments_by_line(source)
    rows = [["0", "", "the command has done what it was asked"]]
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            name = node.targets[0].id
            meaning = comments.get(node.lineno, name.replace("_", " ").lower())
            rows.append([str(node.value.value), f"`{name}`", prose(meaning)])
    rows.append(["141", "", "the reader of the output went away, as in `… | head`"])
    rows.sort(key=lambda row: int(row[0]))
    return "\n\n".join(
        [
            "# Exit codes",
            "A command that fails prints one line, `t5x_lite: KEY: what was got; how to fix it`, "
            "on standard error, and ends with one of these. The names are those of "
            "`t5x_lite.errors`, whose `UserError` Python code gets instead.",
            markdown_table(["code", "name", "meaning"], rows, "rll"),
            "After 129, 130 and 143 the run has saved, and the same command continues it. After "
            "142 it continues from the last checkpoint. `launch/local` ends with the code of the "
            "first process that failed.",
        ]
    )


# reference/package.md


def package_page() -> str:
    """Every file with the first paragraph of its docstring."""
    parts = [
        "# Files of the package",
        "A file imports only from files of lower floors, so that each can be read without those "
        "above it: settings; data (numpy, never jax); the model (jax, never a file on disk); "
        "training; inference; fine-tuning; interop; reports; comparisons and planning; the API and "
        "the commands.",
    ]
    folders = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
    for folder in sorted("" if folder == Path() else folder.as_posix() for folder in folders):
        rows = []
        for path in sorted((PACKAGE / folder).glob("*.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            paragraph = " ".join(docstring.partition("\n\n")[0].split())
            if path.name != "__init__.py" or len(paragraph) > 60:
                rows.append([f"`{path.name}`", prose(paragraph.rstrip(":"))])
        parts += [
            f"## t5x_lite/{folder}".rstrip("/"),
            markdown_table(["file", "what it holds"], rows),
        ]
    return "\n\n".join(parts)


# What written pages ask for.


def benchmarks() -> str:
    """BENCHMARKS.md, without its title."""
    return (ROOT / "BENCHMARKS.md").read_text().partition("\n")[2]


def randomness() -> str:
    """The table of data/rng.py."""
    return _indented(rng.__doc__)


def row_keys() -> str:
    """The keys of a row, from data/rows/layouts.py."""
    return _indented(layouts.__doc__)


def _indented(docstring: str | None) -> str:
    """Return the indented lines of a docstring as a block of code."""
    lines = re.findall(r"^    .*$|^$", inspect.cleandoc(docstring or ""), re.M)
    return f"```text\n{textwrap.dedent(chr(10).join(lines)).strip()}\n```"


def free_settings() -> str:
    """The settings that may differ when a run continues."""
    free = settings_with(schema.RunConfig, RESUMABLE, LOCAL)
    names = ["mesh.*", *sorted(name for name in free if not name.startswith("mesh."))]
    return ", ".join(map(code, names))


def adjustable_settings() -> str:
    """The settings that --change lets differ when a run continues."""
    return ", ".join(map(code, sorted(settings_with(schema.RunConfig, ADJUSTABLE))))


def sharding_table() -> str:
    """The rules that place logical axes on the mesh."""
    rows, whole = [], []
    for name, axis in AXES.items():
        if not axis.split_by:
            whole.append(f"`{name}`")
            continue
        mesh_axes = (axis.split_by,) if isinstance(axis.split_by, str) else axis.split_by
        shown = " × ".join(f"`{mesh_axis}`" for mesh_axis in mesh_axes)
        rows.append([f"`{name}`", axis.meaning, shown])
    rows.append(
        [", ".join(whole), "layers, norms, rows of other tables, …", "whole on each device"]
    )
    return markdown_table(["logical axis", "what it counts", "split over"], rows)


def masks() -> str:
    """Attention masks of the four architectures, as the code has them."""
    import numpy as np

    inputs, targets = np.array([[1, 1, 1]]), np.array([[1, 1, 1, 1]])
    both = np.array([[1, 1, 1, 1, 1, 1, 1]])
    prefix = np.array([[True, True, True, True, False, False, False]])
    packed = np.array([[1, 1, 1, 2, 2, 2, 0]])
    figures = [
        ("encoder", AttentionMask(both, both)),
        ("decoder", AttentionMask(both, both, causal=True)),
        ("prefix decoder, three inputs", AttentionMask(both, both, prefix, causal=True)),
        ("encoder-decoder: encoder", AttentionMask(inputs, inputs)),
        ("encoder-decoder: decoder", AttentionMask(targets, targets, causal=True)),
        ("encoder-decoder: cross-attention", AttentionMask(targets, inputs)),
        (
            "decoder, two segments and padding",
            AttentionMask(packed, packed, causal=True, packed=True),
        ),
    ]
    drawn = [_mask_figure(name, np.asarray(mask.mask())[0, 0]) for name, mask in figures]
    return f'<div class="drawings">{"".join(drawn)}</div>'


def _mask_figure(name: str, mask: Any, cell: int = 16) -> str:
    rows, columns = mask.shape
    squares = []
    for row in range(rows):
        for column in range(columns):
            state = ' class="on"' if mask[row, column] else ""
            place = f'x="{column * cell + 1}" y="{row * cell + 1}"'
            squares.append(f'<rect{state} {place} width="{cell - 2}" height="{cell - 2}"/>')
    size = f'width="{columns * cell}" height="{rows * cell}"'
    label = html.escape(f"attention mask: {name}")
    drawing = f'<svg {size} role="img" aria-label="{label}">{"".join(squares)}</svg>'
    return f"<figure>{drawing}<figcaption>{html.escape(name)}</figcaption></figure>"


def block_figures() -> str:
    """The residual stream through a block, with norms before and after the parts."""
    return (
        '<div class="drawings">'
        + _block_figure("pre-norm: GPT-2, T5", is_pre=True)
        + _block_figure("post-norm: BERT", is_pre=False)
        + "</div>"
    )


def _block_figure(caption: str, is_pre: bool) -> str:
    """Each part beside the residual stream, which runs downwards."""
    stream, spacing = 40, 96  # where the stream runs, and from part to part
    lines, boxes = [], []

    def box(x: float, y: float, width: float, text: str) -> None:
        boxes.append(f'<rect class="part" x="{x}" y="{y}" width="{width}" height="24" rx="4"/>')
        boxes.append(f'<text class="part" x="{x + width / 2}" y="{y + 16}">{text}</text>')

    for number, part in enumerate(("mixer", "cross-attention", "feed-forward")):
        branch = number * spacing + 16  # where the stream is read …
        plus = branch + 40  # … and where the part is added to it
        end = 276 if is_pre else 204
        lines.append(f'<path d="M{stream} {branch - 16}v{spacing}"/>')
        lines.append(f'<path d="M{stream} {branch}H{end}V{plus}H{stream + 8}"/>')
        lines.append(f'<circle cx="{stream}" cy="{plus}" r="8"/>')
        lines.append(f'<path d="M{stream - 8} {plus}h16"/>')
        if is_pre:
            box(72, branch - 12, 56, "norm")
            box(144, branch - 12, 116, part)
        else:
            box(72, branch - 12, 116, part)
            box(stream - 28, plus + 13, 56, "norm")
    label = html.escape(f"a block with {caption}")
    drawing = "".join(lines + boxes)
    size = f'width="284" height="{3 * spacing}"'
    figure = f'<svg {size} role="img" aria-label="{label}">{drawing}</svg>'
    return f"<figure>{figure}<figcaption>{html.escape(caption)}</figcaption></figure>"


PAGES: dict[str, Callable[[], str]] = {
    "reference/settings.md": settings_page,
    "reference/commands.md": commands_page,
    "reference/python.md": python_page,
    "reference/objectives.md": objectives_page,
    "reference/presets.md": presets_page,
    "reference/exit-codes.md": exit_codes_page,
    "reference/package.md": package_page,
}
INSERTS: dict[str, Callable[[], str]] = {
    "BENCHMARKS.md": benchmarks,
    "objectives": objectives_table,
    "layouts": layout_table,
    "traits": traits_table,
    "randomness": randomness,
    "row keys": row_keys,
    "free settings": free_settings,
    "adjustable settings": adjustable_settings,
    "sharding rules": sharding_table,
    "attention masks": masks,
    "blocks": block_figures,
}
