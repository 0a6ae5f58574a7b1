"""The manual: its commands and its Python run, and the site builds.

Of each page the blocks are run in order, in one directory:

    ```bash                     commands as a user types them; those of t5x_lite in this process
    ```python                   in one namespace for the page
    ```pycon                    the same, with what is printed, as a doctest
    ```python title="FILE"      is written to the file; below t5x_lite/ into a copy of the package
    ```diff title="FILE"        a change to such a copy
    ```text                     what was printed, for the reader

A comment in front of a block says what else is meant:

    <!-- slow -->               run by `make test-slow` alone
    <!-- not run: REASON -->    for the reader alone
    <!-- exit code 78 -->       the last command of the block ends with it
    <!-- prints -->             each line of the text was printed by the block before; … is anything
"""

import contextlib
import dataclasses
import doctest
import html
import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import pytest
from conftest import ROOT, users_environment

import t5x_lite
from t5x_lite.__main__ import main
from t5x_lite.commands import line as command_line
from t5x_lite.comparison.cells import with_equal_windows
from t5x_lite.config import CompareConfig, RunConfig, type_hints
from t5x_lite.config.files import load_comparison
from t5x_lite.data.objectives import OBJECTIVES

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

_BLOCK = re.compile(
    r"(?P<marks>(?:^ *<!-- [^\n]* -->\n)*)"
    r"^(?P<indent> *)```(?P<language>[a-z]+)(?P<attributes>[^\n]*)\n"
    r"(?P<text>.*?)"
    r"^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    language: str
    text: str
    line: int
    title: str = ""  # the file that it is, or that it changes
    marks: tuple[str, ...] = ()

    @property
    def is_slow(self) -> bool:
        return "slow" in self.marks

    @property
    def is_run(self) -> bool:
        return not any(mark.startswith("not run: ") for mark in self.marks)

    @property
    def exit_code(self) -> int:
        codes = [int(mark.split()[-1]) for mark in self.marks if mark.startswith("exit code ")]
        return codes[0] if codes else 0


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text, blocks = page.read_text(), []
    for match in _BLOCK.finditer(text):
        title = re.search(r'title="([^"]+)"', match["attributes"])
        blocks.append(
            Block(
                language=match["language"],
                text=textwrap.dedent(match["text"]),
                line=text.count("\n", 0, match.start("language")) + 1,
                title=title[1] if title else "",
                marks=tuple(re.findall(r"<!-- (.*?) -->", match["marks"])),
            )
        )
    return blocks


def commands_of(text: str) -> list[str]:
    """The commands of a block: each of t5x_lite by itself, what is between them as one script."""
    commands, script, lines = [], [], iter(text.splitlines())

    def end_script():
        if script:
            commands.append("\n".join(["set -e", *script]))
            script.clear()

    for line in lines:
        while line.endswith("\\"):
            line = line[:-1] + next(lines)
        here = re.search(r"<<\s*'?(\w+)'?", line)
        if here:
            for more in lines:
                line += "\n" + more
                if more == here[1]:
                    break
        if line.startswith("t5x_lite "):
            end_script()
            commands.append(line)
        elif line.strip() and not line.startswith("#"):
            script.append(line)
    end_script()
    return commands


def words_of(command: str) -> list[str] | None:
    """The words of a command that needs no shell; None where it needs one."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words = list(lexer)
    if words[0] != "t5x_lite" or "$" in command or "`" in command:
        return None
    if any(set(word) <= set("();<>|&") for word in words[1:]):
        return None
    return words[1:]


class Reader:
    """A reader who follows a page, in an empty directory with launch/ and configs/.

    Args:
        apart: whether every command has a process of its own, as users have it.
    """

    def __init__(self, page: Path, directory: Path, apart: bool = False):
        self.page = page.relative_to(ROOT)
        self.directory = directory
        self.apart = apart
        self.namespace = {"__name__": "__main__"}
        self.output = ""  # of the last block
        self.has_package = False  # of its own, changed
        for name in ("launch", "configs"):
            (directory / name).symlink_to(ROOT / name)
        programs = directory / ".bin"
        programs.mkdir()
        script = programs / "t5x_lite"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m t5x_lite "$@"\n')
        script.chmod(0o755)
        path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        self.environment = {
            **(users_environment() if apart else os.environ),
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": str(ROOT),
        }

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        where = f"{self.page}, line {block.line}"
        if block.language == "text":
            if "prints" in block.marks:
                self.compare(block, where)
        elif block.language == "diff":
            self.change(block, where)
        elif block.title:
            self.write(block)
        elif block.language == "bash":
            self.run_all(block, where)
        elif block.language == "python":
            with self.printing():
                exec(compile(block.text, where, "exec"), self.namespace)
        elif block.language == "pycon":
            self.run_doctest(block, where)

    def run_all(self, block: Block, where: str) -> None:
        """The commands of a block; all of it in a shell where it exports variables."""
        self.output = ""
        commands = commands_of(block.text)
        if re.search(r"^export \w+=", block.text, re.MULTILINE):
            commands = ["set -e\n" + block.text]
        for command in commands:
            expected = block.exit_code if command is commands[-1] else 0
            code = self.run(command)
            message = f"{where}: {command}\nexit code {code}, expected {expected}"
            assert code == expected, f"{message}\n{self.output}"

    def run(self, command: str) -> int:
        """The exit code of a command; in this process, unless it needs another."""
        words = None if self.has_package or self.apart else words_of(command)
        if words is None:
            ended = subprocess.run(
                ["bash", "-c", command],
                cwd=self.directory,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self.output += ended.stdout
            return ended.returncode
        with self.printing():
            try:
                return main(words)
            except SystemExit as ended:  # argparse's
                return ended.code

    @contextlib.contextmanager
    def printing(self):
        """Add what is printed to the output."""
        with (
            contextlib.redirect_stdout(io.StringIO()) as printed,
            contextlib.redirect_stderr(printed),
        ):
            try:
                yield
            finally:
                self.output += printed.getvalue()

    def run_doctest(self, block: Block, where: str) -> None:
        test = doctest.DocTestParser().get_doctest(
            block.text, self.namespace, where, str(self.page), block.line
        )
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        report: list[str] = []
        failed = runner.run(test, out=report.append, clear_globs=False).failed
        assert not failed, "".join(report)
        self.namespace.update(test.globs)

    def compare(self, block: Block, where: str) -> None:
        """Each line of the block must have been printed; … stands for anything."""
        printed = " ".join(self.output.split())
        for line in block.text.splitlines():
            parts = [re.escape(" ".join(part.split())) for part in line.split("…")]
            pattern = r"\s*.*?\s*".join(parts)
            assert re.search(pattern, printed), f"{where}: not printed: {line}\n{self.output}"

    def write(self, block: Block) -> None:
        path = self.file(block.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)

    def change(self, block: Block, where: str) -> None:
        path = self.file(block.title)
        before, after = "", ""
        for line in block.text.splitlines(keepends=True):
            before += line[1:] if line[0] in " -" else ""
            after += line[1:] if line[0] in " +" else ""
        text = path.read_text()
        assert text.count(before) == 1, (
            f"{where}: {block.title} has these lines not once:\n{before}"
        )
        path.write_text(text.replace(before, after))
        compile(path.read_text(), str(path), "exec")

    def file(self, title: str) -> Path:
        """A file of the directory; of the package, in a copy of it."""
        if title.startswith("t5x_lite/") and not self.has_package:
            self.has_package = True
            leave_out = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / "t5x_lite", self.directory / "t5x_lite", ignore=leave_out)
            self.environment["PYTHONPATH"] = str(self.directory)
        return self.directory / title


def _follow(page: Path, blocks: list[Block], directory: Path, monkeypatch, apart=False) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    importlib.invalidate_caches()
    reader, modules = Reader(page, directory, apart), set(sys.modules)
    try:
        for block in blocks:
            reader.follow(block)
    finally:
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(directory)):
                del sys.modules[name]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@contextlib.contextmanager
def optimised():
    """Compile programs as users have them: it takes longer, but a hundred steps take less."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_page(page, tmp_path, monkeypatch):
    blocks = [block for block in blocks_of(page) if block.is_run and not block.is_slow]
    with optimised() if _name(page) == "README.md" else contextlib.nullcontext():
        _follow(page, blocks, tmp_path, monkeypatch)


SLOW_PAGES = [page for page in PAGES if any(block.is_slow for block in blocks_of(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW_PAGES, ids=_name)
def test_whole_page(page, tmp_path, monkeypatch):
    blocks = [block for block in blocks_of(page) if block.is_run]
    _follow(page, blocks, tmp_path, monkeypatch, apart=True)


COMPARISONS = [
    pytest.param(page, block.title, id=f"{_name(page)}, {block.title}")
    for page in PAGES
    for block in blocks_of(page)
    if "def get_config" in block.text and "CompareConfig" in block.text
]


@pytest.mark.parametrize(("page", "title"), COMPARISONS)
def test_comparisons_of_the_manual_are_accepted(page, title, tmp_path, monkeypatch):
    """Training them is slow. Their rows hold equally much text."""
    for block in blocks_of(page):
        if block.language == "python" and block.title.endswith(".py") and "/" not in block.title:
            (tmp_path / block.title).write_text(block.text)
    monkeypatch.syspath_prepend(tmp_path)
    with_equal_windows(load_comparison(str(tmp_path / title)).cells)


def test_marks_are_known():
    known = r"slow|not run: .+|exit code \d+|prints"
    for page in PAGES:
        for block in blocks_of(page):
            for mark in block.marks:
                assert re.fullmatch(known, mark), f"{page}, line {block.line}: {mark}"


def test_commands_of_a_block():
    text = "# why\nt5x_lite train \\\n  --config=a\n\ncat > b <<'EOF'\n# one\nEOF\nls\n"
    assert commands_of(text) == [
        "t5x_lite train   --config=a",
        "set -e\ncat > b <<'EOF'\n# one\nEOF\nls",
    ]


def test_words_of_a_command():
    assert words_of("t5x_lite generate '{a} => {b}\\n'") == ["generate", "{a} => {b}\\n"]
    assert words_of("t5x_lite --help | head") is None
    assert words_of("ls") is None


# The site.


def test_site(tmp_path):
    """The site builds without a warning, offline, and holds what it should."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    check_settings(tmp_path / "reference" / "settings.html")
    check_commands(tmp_path / "reference" / "commands.html")
    check_names(tmp_path / "reference")
    check_navigation(tmp_path)
    check_nothing_is_fetched(tmp_path)


def anchors_of(page: Path) -> set[str]:
    return set(re.findall(r'id="([^"]+)"', page.read_text()))


def check_settings(page: Path) -> None:
    """Every setting of the schema is documented."""

    def keys(schema: type, prefix: str = "") -> list[str]:
        found = []
        for name, kind in type_hints(schema).items():
            if dataclasses.is_dataclass(kind):
                found += keys(kind, f"{prefix}{name}.")
            else:
                found.append(f"{prefix}{name}")
        return found

    assert set(keys(RunConfig) + keys(CompareConfig)) <= anchors_of(page)


def check_commands(page: Path) -> None:
    """Every command is documented, with every option."""
    text, anchors = html.unescape(page.read_text()), anchors_of(page)
    for action in command_line.parser()._subparsers._group_actions:
        for name, command in action.choices.items():
            assert name in anchors
            for option in command._actions:
                flags = set(option.option_strings) - {"-h", "--help"}
                missing = [flag for flag in flags if f">{flag}" not in text]
                assert not missing, f"{name} {missing}"


def check_names(reference: Path) -> None:
    """Every objective is documented, and what the package offers in Python."""
    assert set(OBJECTIVES) <= anchors_of(reference / "objectives.html")
    names = {name.lower().replace("_", "-") for name in t5x_lite.__all__}
    assert names <= anchors_of(reference / "python.html")


def check_navigation(site: Path) -> None:
    """Every page can be reached from the navigation."""
    linked = set(re.findall(r'href="([^"#]+\.html)', (site / "index.html").read_text()))
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    assert pages - {"404.html", "index.html"} <= linked


def check_nothing_is_fetched(site: Path) -> None:
    """No page loads anything from elsewhere."""
    for page in site.rglob("*.html"):
        loads = r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?:[^"]+)"'
        assert not re.findall(loads, page.read_text()), page
