"""A small corpus of bytes, small configs, and the command line as a user has it."""

import gc
import importlib.util
import io
import os
import random
import runpy
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from mmap import ACCESS_READ, mmap
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
from _pytest.python import pytest_pyfunc_call as pytests_own_call

from t5x_lite.config.permission import allow
from t5x_lite.errors import BAD_CONFIG, UserError

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# What the tests compute is compiled in half the time; only the manual's commands are compiled as
# users have them.
QUICK_TO_COMPILE = ("xla_cpu_use_fusion_emitters=false", "xla_cpu_parallel_codegen_split_count=1")


def known_to_xla(flags: tuple[str, ...]) -> list[str]:
    """Those flags that the installed XLA has: any other would end the process."""
    library = Path(importlib.util.find_spec("jaxlib").origin).parent / "libjax_common.so"
    if not library.exists():
        return []
    with open(library, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as code:

        def is_known(flag: str) -> bool:
            name = flag.partition("=")[0]
            return code.find(f"\0{name}\0".encode()) >= 0  # a string of its own in the library

        return list(filter(is_known, flags))


# Once only: this file is read again by `import conftest`, by workers, and by processes of tests.
if "USERS_XLA_FLAGS" not in os.environ:
    os.environ["USERS_XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")
    flags = map("--{}".format, known_to_xla(QUICK_TO_COMPILE))
    os.environ["XLA_FLAGS"] = " ".join([os.environ["USERS_XLA_FLAGS"], *flags])
USERS_FLAGS = os.environ["USERS_XLA_FLAGS"]
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
ROOT = Path(__file__).parent.parent
# Traced programs are millions of objects that live on. Python would look through them every 700
# allocations, which takes a fifteenth of the tests' time.
gc.set_threshold(200_000, 20, 100)


def check_outer_functions(*, typechecker, decorate=jaxtyping.jaxtyped):
    """Check the declared types of functions, but not of those defined inside another function:
    these would be decorated again at every call, which takes a fifteenth of the tests' time.
    """

    def check(function):
        is_inner = "<locals>" in getattr(function, "__qualname__", "")
        return function if is_inner else decorate(typechecker=typechecker)(function)

    return check


# pytest's --jaxtyping-packages decorates what it imports with the function of this name.
jaxtyping.jaxtyped = check_outer_functions
# No test is timed: a busy machine would fail it.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_configure(config):
    """Each of several workers has processors of its own: their threads would be in each other's
    way.
    """
    worker = getattr(config, "workerinput", {"workerid": ""})
    number = worker["workerid"].removeprefix("gw")
    if number.isdecimal() and hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        own = processors[int(number) :: worker["workercount"]]
        os.sched_setaffinity(0, own or processors)


def slow(*values):
    """Values of a parametrised test that only `make test-slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def with_room(function, *arguments):
    return function(*arguments)


# Python keeps its frames in pieces of 16 kB and maps and unmaps a piece whenever a call crosses
# its end, thousands of times while a program is traced. A frame that claims 2.4 MB brings a piece
# of 4 MB, in whose rest all frames of the test have room: a twentieth of the tests' time.
with_room.__code__ = with_room.__code__.replace(co_stacksize=300_000)
# Declared types are checked only in tests of the functions that declare them. Other tests run whole
# models, where the checks took a twelfth of the time. CHECK_TYPES=1 checks everywhere.
CHECKED = ("",) if os.environ.get("CHECK_TYPES") else ("tests/model/", "tests/data/")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Call a test as pytest does, where its frames have room."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", not pyfuncitem.nodeid.startswith(CHECKED))
    try:
        return with_room(pytests_own_call, pyfuncitem)
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


LENGTHS = {
    "encoder": {"sequence_length": 34},
    "decoder": {"sequence_length": 40},
    "prefix_decoder": {"sequence_length": 40},
    "encoder_decoder": {"inputs": 32, "targets": 24},
}
# Every objective with every architecture that can learn it.
CELLS = [
    ("masked_lm", "encoder"),
    ("causal_lm", "decoder"),
    ("prefix_lm", "decoder"),
    ("prefix_lm(score_prefix=True)", "decoder"),
    ("prefix_lm", "prefix_decoder"),
    ("prefix_lm", "encoder_decoder"),
    ("span_corruption", "decoder"),
    ("span_corruption", "prefix_decoder"),
    ("span_corruption", "encoder_decoder"),
    ("span_corruption(random_roll=True)", "decoder"),
    ("span_corruption(random_roll=True)", "prefix_decoder"),
    ("span_corruption(random_roll=True)", "encoder_decoder"),
    ("iid_denoising", "decoder"),
    ("iid_denoising", "prefix_decoder"),
    ("iid_denoising", "encoder_decoder"),
]
# Those that say nothing new about the model: their rows are proven, one of each kind is trained.
MORE_CELLS = [
    ("masked_lm(choice='word')", "encoder"),
    ("masked_lm(choice='span')", "encoder"),
    ("masked_lm(choice='salient')", "encoder"),
    ("masked_lm(second='next')", "encoder"),
    ("masked_lm(second='order')", "encoder"),
    ("masked_lm(static=True)", "encoder"),
    ("prefix_lm(split=0.75, mode='S')", "encoder_decoder"),
    ("fill_in_the_middle", "decoder"),
    ("fill_in_the_middle(fim_rate=1)", "prefix_decoder"),
    ("drop_tokens", "encoder_decoder"),
    ("mass_style", "encoder_decoder"),
    ("bert_style", "prefix_decoder"),
    ("deshuffling", "encoder_decoder"),
    ("sentence_permutation", "encoder_decoder"),
    ("text_infilling(permute_sentences=True)", "encoder_decoder"),
    ("ul2", "encoder_decoder"),
    ("ul2", "prefix_decoder"),
    ("causal_lm + span_corruption + fill_in_the_middle", "decoder"),
    ("masked_lm + masked_lm(noise_density=0.3)", "encoder"),
    ("masked_next_token", "decoder"),
    ("masked_diffusion", "encoder"),
    ("masked_diffusion", "decoder"),
    ("causal_lm + masked_next_token(choice='word')", "decoder"),
    ("meap", "decoder"),
    ("meap(choice='span') + masked_next_token", "decoder"),
]
ALL_CELLS = CELLS + MORE_CELLS


def sentences(count: int, seed: int = 0) -> str:
    """Documents of a language so small that a tiny model learns it, one a block."""
    pick = random.Random(seed).choice
    nouns, verbs = ("cat", "dog", "bird", "fish"), ("sees", "hears", "likes")
    documents = []
    for _ in range(count):
        first = f"the {pick(nouns)} {pick(verbs)} the {pick(nouns)}"
        documents.append(f"{first} and the {pick(nouns)} {pick(verbs)} it.")
    return "\n\n".join(documents)


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory):
    """Stores and compiled programs of the tests, away from the user's."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # what one worker compiled the other need not
        base = base.parent
    os.environ["T5X_LITE_CACHE"] = str(base / "cache")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """A text file of 400 documents."""
    path = tmp_path_factory.mktemp("text") / "sentences.txt"
    path.write_text(sentences(400))
    return path


def settings(text_file, objective="causal_lm", architecture="decoder", **more) -> dict:
    """A config, as nested dicts, that trains in seconds; `more` is keyed "model.d_model" and so
    on.
    """
    values = {
        "objective": objective,
        "data.source": str(text_file),
        "data.document": "block",
        "data.validation_fraction": 0.1,
        "data.tokenizer": "bytes",
        "data.batch_size": 8,
        "data.lengths": LENGTHS[architecture],
        "model.architecture": architecture,
        "model.num_layers": 2,
        "model.d_model": 16,
        "model.num_heads": 2,
        "training.steps": 6,
        "training.log_every": 1,
        **more,
    }
    nested: dict = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        inner = nested
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return nested


@pytest.fixture(scope="session")
def make(text_file):
    """A function that makes a run of small settings, resolved, and its corpus."""
    from t5x_lite.config import RunConfig
    from t5x_lite.config.files import build
    from t5x_lite.data.store.prepare import prepare
    from t5x_lite.resolve import resolve

    def make_run(*args, **more):
        config = build(RunConfig, settings(text_file, *args, **more))
        corpus = prepare(config.data)
        return resolve(config, corpus.tokenizer.vocabulary), corpus

    return make_run


@pytest.fixture(scope="session")
def batches_of(make):
    """A function that makes the batches of a run of small settings, of one of its splits."""
    from t5x_lite.data.rows.batches import make_batches

    def make_split(*args, split="train", **more):
        resolved, corpus = make(*args, **more)
        config = resolved.config
        return make_batches(resolved.rows, config.data, config.seed, corpus, split)

    return make_split


@pytest.fixture
def config_file(tmp_path, text_file):
    """A function that writes a config file and returns its path."""

    def write(*args, **more):
        path = tmp_path / "config.py"
        path.write_text(f"def get_config():\n    return {settings(text_file, *args, **more)!r}\n")
        return path

    return write


def forget_programs():
    """Forget what was compiled: the code that it came from is changed."""
    computation = sys.modules.get("t5x_lite.training.computation")
    if computation:
        computation.forget_programs()


# Modules and packages of which nothing is ever compiled.
ON_HOST = ("comparison", "data", "locks", "storage", "training.loop")


def is_compiled(target) -> bool:
    """Whether programs may be compiled from a module, a class or what a dotted name names."""
    name = target if isinstance(target, str) else getattr(target, "__module__", None)
    name = name or getattr(target, "__name__", "")  # a module's own
    if name.partition(".")[0] in sys.stdlib_module_names:
        return False
    return not any(f"{name}.".startswith(f"t5x_lite.{part}.") for part in ON_HOST)


class Patches(pytest.MonkeyPatch):
    """Changes that are undone after a test. A change of code forgets the programs that were
    compiled from it, and so does undoing it. `chdir` and `setenv` change no code.
    """

    changes_code = False

    def setattr(self, target, *args, **more):
        if is_compiled(target):
            self._forget()
        super().setattr(target, *args, **more)

    def delattr(self, target, *args, **more):
        if is_compiled(target):
            self._forget()
        super().delattr(target, *args, **more)

    def setitem(self, dic, name, value):
        if dic is not os.environ:
            self._forget()
        super().setitem(dic, name, value)

    def delitem(self, dic, name, raising=True):
        if dic is not os.environ and dic is not sys.modules:
            self._forget()
        super().delitem(dic, name, raising)

    def undo(self):
        super().undo()
        if self.changes_code:
            self._forget()

    def _forget(self):
        self.changes_code = True
        forget_programs()


@pytest.fixture
def monkeypatch():
    """pytest's own fixture, with Patches."""
    with Patches.context() as patches:
        yield patches


@pytest.fixture
def exchange(monkeypatch):
    """A function that puts a module of the test's into a table of a block's parts."""
    from t5x_lite.model import transformer

    def forget():
        for function in vars(transformer).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()

    def put(table, name, part):
        monkeypatch.setitem(table, name, part)
        forget()

    yield put
    forget()


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """A function that writes a module of the user's own, and returns a path that exists once it has
    been imported.
    """
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        monkeypatch.delitem(sys.modules, name, raising=False)
        mark = tmp_path / f"{name} was imported"
        leaves_a_mark = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
        (tmp_path / f"{name}.py").write_text(f"{text}\n{leaves_a_mark}")
        return mark

    return write


@pytest.fixture
def own_code():
    """Settings may name code of any module, as they may in a file of the user's own."""
    with allow(None):
        yield


@pytest.fixture
def run_script(monkeypatch, capfd):
    """A function that runs a script of launch/ in this process, as one of its own takes a second to
    import what it needs. It does not wait where it would sleep.
    """

    def script(name, *words, cwd, path) -> subprocess.CompletedProcess:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            patch.setenv("PATH", path)
            patch.setattr(sys, "path", sys.path.copy())
            patch.setattr(sys, "argv", [f"launch/{name}", *words])
            patch.setattr("time.sleep", lambda seconds: None)
            try:
                runpy.run_path(str(ROOT / "launch" / name), run_name="__main__")
                code = 0
            except SystemExit as exit:
                code = exit.code
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        return subprocess.CompletedProcess(words, code or 0, *capfd.readouterr())

    return script


def start(*args, **more) -> subprocess.Popen:
    """The command line in a process of its own: optimised as users have it, compiled quickly."""
    command = [sys.executable, "-m", "t5x_lite", *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = users_environment() | {"XLA_FLAGS": os.environ["XLA_FLAGS"]}
    return subprocess.Popen(command, **{**pipes, "cwd": ROOT, "env": environment, **more})


def users_environment() -> dict[str, str]:
    """The environment without what makes tests compile quickly."""
    environment = os.environ | {"XLA_FLAGS": USERS_FLAGS}
    environment.pop("JAX_DISABLE_MOST_OPTIMIZATIONS", None)
    return environment


def with_devices(count: int) -> dict[str, str]:
    """The environment of a process that has so many simulated devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={count}"
    return os.environ | {"XLA_FLAGS": flags}


def run(*args, code: int = 0) -> tuple[str, str]:
    """Run a command to its end, in this process; its output and errors. The exit code must be
    `code`.
    """
    from t5x_lite.__main__ import main

    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            exit_code = main([str(arg) for arg in args])
        except SystemExit as exit:  # argparse's
            exit_code = exit.code
    assert exit_code == code, f"exit code {exit_code}\n{out.getvalue()}\n{err.getvalue()}"
    return out.getvalue(), err.getvalue()


def run_apart(*args, code: int = 0, **more) -> tuple[str, str]:
    """The same in a process of its own, as a user has it: nothing may be a traceback."""
    process = start(*args, **more)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err, err
    return out, err


def refusal(function, *args, code: int = BAD_CONFIG, **more) -> str:
    """The one sentence of the UserError that a call raises."""
    with pytest.raises(UserError) as caught:
        function(*args, **more)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    return str(caught.value)
