"""The commands: python -m t5x_lite COMMAND. Bad input is one sentence and an exit code, never a
traceback.

Each is thin over api.py; what they import themselves is imported late, so that --help and typos
answer at once.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t5x_lite import __version__, storage
from t5x_lite.config import CompareConfig, RunConfig
from t5x_lite.errors import INTERRUPTED, UNFIT, USAGE, UserError, foreseen_errors, user_errors
from t5x_lite.machine import check_platforms

if TYPE_CHECKING:
    from t5x_lite.api import LanguageModel
    from t5x_lite.data.rows.plan import RowPlan
    from t5x_lite.specs import AllowedCode

Args = argparse.Namespace


# What commands have in common.


def _say(text: str) -> None:
    print(storage.with_addresses(text), flush=True)


def _config_name(args: Args) -> str:
    if not args.config:
        raise UserError(
            USAGE, f"{args.command}: --config=FILE is missing; --config=gpt_tiny is one that ships"
        )
    return args.config


def _config(args: Args) -> tuple[RunConfig, "AllowedCode"]:
    """The checked config, and which modules it may name code of."""
    from t5x_lite.config_files import allowed_code, load

    config = load(_config_name(args), args.overrides)
    return config, allowed_code(args.config, args.overrides, args.allow_code)


def _planned_config(args: Args) -> tuple[RunConfig, "RowPlan", "AllowedCode"]:
    """The same of a run, with the plan of its rows: what cannot be laid out is refused before jax
    is imported.
    """
    from t5x_lite.resolve import plan_objective

    config, allowed = _config(args)
    if config.task.name:
        raise UserError(USAGE, f"{args.command}: this run learned a task; finetune goes on with it")
    return config, plan_objective(config, allowed), allowed


def check_settings(argv: Sequence[str]) -> None:
    """Refuse a command that trains, if its settings cannot be trained; nothing is begun."""
    _planned_config(parse(argv))


def _workdir(args: Args) -> Path:
    if not args.workdir:
        raise UserError(
            USAGE, f"{args.command}: --workdir=DIR is missing; name the directory of the run"
        )
    return storage.local_path(args.workdir)


def _run_directory(args: Args) -> Path:
    from t5x_lite.config_files import check_is_run

    workdir = _workdir(args)
    check_is_run(workdir)
    return workdir


def _mesh(args: Args) -> Any:
    """--mesh=fsdp=4,tensor=2 as a Mesh; None where it is not given."""
    from t5x_lite.config import Mesh
    from t5x_lite.config_files import build

    if not args.mesh:
        return None
    sizes = {}
    for part in args.mesh.split(","):
        axis, equals, size = part.partition("=")
        if not equals or not size.lstrip("-").isdigit():
            raise UserError(
                USAGE, f"--mesh={args.mesh}: expected AXIS=SIZE,…, such as fsdp=4,tensor=2"
            )
        sizes[axis] = size
    return build(Mesh, sizes, "mesh.")


def _model(args: Args) -> "LanguageModel":
    workdir = _run_directory(args)
    from t5x_lite import api
    from t5x_lite.training.loop import setup_jax

    setup_jax()
    return api.load_model(workdir, _mesh(args), args.allow_code)


# The commands.


def prepare(args: Args) -> None:
    """text → tokenizer and token store, ahead of training"""
    config, _, allowed = _planned_config(args)
    import shlex

    from t5x_lite.data.store.prepare import prepare

    try:
        beam_options = None if args.beam is None else shlex.split(args.beam)
    except ValueError as error:
        raise UserError(USAGE, f"--beam={args.beam}: {str(error).lower()}; close it") from error
    _say(f"store: {prepare(config.data, _say, allowed, beam_options).path}")


def train(args: Args) -> None:
    """pretrain a model; the same command continues where it was stopped"""
    config, rows, allowed = _planned_config(args)
    workdir = _workdir(args)
    from t5x_lite.data.store.prepare import prepare

    corpus = prepare(config.data, _say, allowed)
    _join_processes(args)
    import jax

    from t5x_lite.resolve import resolve, text_data
    from t5x_lite.training.loop import train

    resolved = resolve(config, corpus.tokenizer.vocabulary, rows)
    train(resolved, text_data(resolved, corpus), workdir, take_over=args.take_over)
    if jax.process_index() == 0:
        _say(f"next: {_next_command(rows, workdir)}")


def finetune(args: Args) -> None:
    """train a model on a task; the same command continues where it was stopped"""
    from t5x_lite.config_files import check_is_run, load_task

    workdir = _workdir(args)
    if not args.init or not args.task:
        missing = "init=DIR" if not args.init else "task=NAME"
        example = "finetune --init=runs/bert --task=which_module --workdir=runs/modules"
        raise UserError(USAGE, f"finetune: --{missing} is missing; such as {example}")
    task, init = load_task(args.task), storage.local_path(args.init)
    check_is_run(init)
    from t5x_lite.study import finetune as tuning

    results = tuning.finetune(
        init,
        task,
        workdir,
        args.overrides,
        args.seeds,
        args.grid,
        args.from_scratch,
        args.adapt,
        _say,
        None,
    )
    storage.push_all()
    _say(tuning.show(results))
    _say(f"written: {workdir / 'report.html'}, report.md and report.json")


def _next_command(rows: "RowPlan", workdir: Path) -> str:
    """What one does with a trained model first."""
    if rows.masked or rows.uses_sentinels:
        return f't5x_lite fill --workdir={workdir} "The ___ is in the house."'
    return f't5x_lite generate --workdir={workdir} "The"'


def _join_processes(args: Args) -> None:
    """Join the other processes of the run, where launch/local or the cluster says there are
    some.
    """
    import jax

    count = os.environ.get("T5X_LITE_PROCESSES")
    if count:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        number = int(os.environ["T5X_LITE_PROCESS"])
        jax.distributed.initialize(os.environ["T5X_LITE_COORDINATOR"], int(count), number)
    elif args.distributed:
        with user_errors(USAGE, "--distributed: no cluster that jax knows is here; leave it out"):
            jax.distributed.initialize()


def _share(args: Args) -> None:
    """Join the other processes, where there are some, to do the command together; the first one
    says what comes of it.
    """
    if not args.distributed and "T5X_LITE_PROCESSES" not in os.environ:
        return
    _join_processes(args)
    import jax

    if jax.process_count() > 1 and args.command != "compare" and not args.mesh:
        reason = f"{jax.process_count()} processes share a model over a mesh"
        raise UserError(USAGE, f"{args.command}: {reason}; add --mesh, such as --mesh=fsdp=4")
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")


def evaluate(args: Args) -> None:
    """loss, perplexity and accuracy of a trained model on its whole validation split"""
    workdir = _run_directory(args)
    if args.task:
        return _evaluate_task(args, workdir)
    if args.shots or args.limit or args.channel or args.predictions:
        raise UserError(
            USAGE, "evaluate: --shots, --limit, --channel and --predictions need --task"
        )
    from t5x_lite import api

    metrics = api.evaluate(
        workdir, _mesh(args), lambda text: print(text, file=sys.stderr), args.allow_code
    )
    if args.json:
        return _say(json.dumps(metrics))
    for name, value in metrics.items():
        if isinstance(value, float):
            shown = f"{value:,.0f}" if value.is_integer() else f"{value:,.4f}"
        else:
            shown = str(value)
        _say(f"{name.replace('_', ' '):<18}{shown:>16}")


def _evaluate_task(args: Args, workdir: Path) -> None:
    """The same of a task, that the model was trained on or not."""
    from t5x_lite.config_files import load_task

    task = load_task(args.task)
    model = _model(args)
    results = model.evaluate_task(
        task, args.split, args.shots, args.seed, "channel" if args.channel else "direct", args.limit
    )
    if args.predictions:
        lines = [json.dumps(record, ensure_ascii=False) for record in results.pop("predictions")]
        Path(args.predictions).write_text("\n".join(lines) + "\n", "utf-8")
    results.pop("predictions", None)
    if args.json:
        return _say(json.dumps(results))
    _say(f"{task.name}, {results['split']}: {results['examples']:,} examples")
    _say(f"by {results['method']}")
    for name, value in results["groups"].items():
        _say(f"  {name:<56}{value:>8.4f}")
    for name, value in results["metrics"].items():
        _say(f"{name.replace('_', ' '):<28}{value:>8.4f}")


def generate(args: Args) -> None:
    """continue texts"""
    names = (
        "max_new_tokens",
        "temperature",
        "top_k",
        "top_p",
        "seed",
        "num_beams",
        "length_penalty",
    )
    options: dict[str, Any] = {name: getattr(args, name) for name in names}
    options["stop"] = tuple(map(_unescaped, args.stop))
    texts = args.text
    if not args.examples and (args.shots is not None or args.template):
        raise UserError(
            USAGE,
            "generate: --shots and --template are of examples; name their file with --examples",
        )
    if args.examples:
        texts = _few_shot_prompts(args)
        options["stop"] = options["stop"] or ("\n",)
    model = _model(args)
    if len(texts) == 1 and not args.json:
        pieces = model.stream(texts[0], **options)
        first = next(pieces, "")  # raises before the prompt is shown
        print(args.text[0], first, sep="", end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        return _say("")
    for text, continuation in zip(args.text, model.generate(texts, **options), strict=True):
        if args.json:
            _say(json.dumps({"text": text, "continuation": continuation}, ensure_ascii=False))
        else:
            _say(text + continuation)


def _few_shot_prompts(args: Args) -> list[str]:
    from t5x_lite.inference import few_shot

    examples = few_shot.read_examples(Path(args.examples))
    template = _unescaped(args.template or few_shot.TEMPLATE)
    shots = len(examples) if args.shots is None else args.shots
    return [
        few_shot.few_shot_prompt(examples, text, shots, args.seed, template) for text in args.text
    ]


def _unescaped(text: str) -> str:
    """Text as typed in a shell, where a line end is the two characters \\n."""
    return text.replace("\\n", "\n")


def fill(args: Args) -> None:
    """fill the blanks (___) of texts"""
    model = _model(args)
    for text in args.text:
        answers = model.fill(text, args.top)
        if args.json:
            _say(json.dumps({"text": text, "blanks": answers}, ensure_ascii=False))
            continue
        _say(text)
        for number, answer in enumerate(answers, 1):
            if not isinstance(answer, str):
                answer = ", ".join(f"{word} {probability:.1%}" for word, probability in answer)
            _say(f"  {number}. {answer}")


def score(args: Args) -> None:
    """log-probability and bits per byte of texts, or of choices given a context"""
    model = _model(args)
    scores = model.score(args.text, args.context)
    if args.json:
        for one in scores:
            _say(json.dumps(one._asdict(), ensure_ascii=False))
        return
    lossy = "" if model.tokenizer.lossless else " (lossy tokenizer: not comparable)"
    _say(f"{scores[0].kind.replace('_', ' ')} in nats, tokens, bits per byte{lossy}, text")
    for one in scores:
        _say(f"{one.nats:10.3f}  {one.tokens:5d}  {one.bits_per_byte:6.3f}  {one.text}")
    if args.context and len(scores) > 1:
        likeliest = max(scores, key=lambda one: one.nats)
        by_byte = min(scores, key=lambda one: one.bits_per_byte)
        _say(f"likeliest: {likeliest.text!r}; by byte: {by_byte.text!r}")


def embed(args: Args) -> None:
    """texts as vectors: the hidden states of a model, their mean unless told otherwise"""
    if args.out and Path(args.out).suffix != ".npy":
        raise UserError(USAGE, f"--out={args.out}: expected a name that ends in .npy")
    vectors = _model(args).embed(args.text, args.pooling)
    if args.out:
        from t5x_lite.inference.embed import save

        save(Path(args.out), vectors)
        return _say(f"written: {args.out}")
    key = "hidden_states" if args.pooling == "none" else "vector"
    for text, vector in zip(args.text, vectors, strict=True):
        _say(json.dumps({"text": text, key: vector.tolist()}, ensure_ascii=False))


def import_(args: Args) -> None:
    """make a run directory of a model of Hugging Face"""
    from t5x_lite.interop import convert

    workdir = _workdir(args)
    convert.import_model(Path(args.path), workdir, args.tokenizer, _say, args.add_specials)


def export(args: Args) -> None:
    """write a trained model as files of Hugging Face"""
    workdir = _run_directory(args)
    from t5x_lite.interop import convert

    convert.export_model(
        workdir, Path(args.path), args.dtype, _say, _mesh(args), args.allow_code, args.lora
    )


def compare(args: Args) -> None:
    """train runs that differ in some settings, on the same text under one budget, and write
    report.html; the same command continues where it was stopped
    """
    from t5x_lite.config_files import allowed_code, split_at_commas

    workdir = _workdir(args)
    config = comparison_of(args)
    allowed = allowed_code(args.config, args.overrides, args.allow_code)
    from t5x_lite.study import cells, compare, report

    only = split_at_commas(args.cells) if args.cells else ()
    if args.dry_run:
        planned, *_ = cells.plan_comparison(config, workdir, _say, allowed, only, measured=True)
        return _say(cells.plan_in_words(config, planned))
    results = compare.compare(config, workdir, _say, allowed, only, args.jobs)
    storage.push_all()
    if results:
        _say(report.summary(results))
        _say(f"written: {workdir / 'report.html'}, report.md, report.csv and report.json")


def comparison_of(args: Args) -> CompareConfig:
    """What `compare` is asked to train."""
    from t5x_lite.config_files import load_comparison

    seeds = [] if args.seeds is None else [f"seeds={args.seeds}"]
    return load_comparison(_config_name(args), [*args.overrides, *seeds], args.grid)


def report(args: Args) -> None:
    """write report.html and report.md of a run, of several side by side, or of what compare or
    finetune left
    """
    workdir = _workdir(args)
    from t5x_lite.study import compare

    runs = [storage.local_path(run) for run in args.runs]
    compare.write_report(workdir, runs, _say, args.allow_code)
    storage.push_all()
    _say(f"written: {workdir / 'report.html'} and report.md")


def inspect(args: Args) -> None:
    """what a config shows the model: the first rows in words, and the ledger, or the first examples
    of a task; or what a token store holds
    """
    if args.store and args.config:
        raise UserError(USAGE, "inspect: got --store and --config; give one of them")
    if args.task:
        from t5x_lite import api

        config, allowed = _config(args)
        shown = api.inspect_task(config, args.task, "train", args.examples, _say, allowed)
        return _say(shown)
    if args.store:
        from t5x_lite.data.store.corpus import open_store
        from t5x_lite.study.inspection import show_store

        return _say(show_store(open_store(args.store, check_again=True), args.examples))
    config, _, allowed = _planned_config(args)
    from t5x_lite import api

    _say(str(api.inspect(config, args.examples, _say, allowed)))


def plan(args: Args) -> None:
    """what a run needs of devices that are not here: memory, time, money; no text is needed"""
    from t5x_lite.hardware import parse_topology

    config, _, allowed = _planned_config(args)
    topology = parse_topology(args.topology)
    if args.scale and (args.search or args.splits):
        option = "--search" if args.search else "--splits"
        raise UserError(USAGE, f"plan: --scale plans one arrangement; leave {option} out")
    if args.workdir and not args.scale:
        raise UserError(USAGE, "plan: --workdir is for the page of --scale; leave it out")
    # Nothing runs here on accelerators that the machine may have.
    os.environ["JAX_PLATFORMS"] = "cpu"
    from t5x_lite.study import plan_report, plan_search
    from t5x_lite.study.inventory import by_axis
    from t5x_lite.study.plan import Assumptions, make_plan

    assumed = Assumptions(args.mfu, args.dollars, args.watts, args.tflops)
    if args.scale:
        plans = plan_search.weak_scaling(config, topology, assumed, allowed)
        if args.workdir:
            from t5x_lite.study import page

            workdir = _workdir(args)
            workdir.mkdir(parents=True, exist_ok=True)
            page.write(plan_report.scaling_page(args.config, plans), workdir)
        shown: Any = [plan.as_json() for plan in plans] if args.json else None
        return _say(json.dumps(shown) if shown else plan_report.show_scaling(plans))
    if args.search:
        to_stderr = partial(print, file=sys.stderr)
        found = plan_search.search(config, topology, assumed, allowed, to_stderr)
        if args.json:
            return _say(json.dumps([plan.as_json() for plan in found]))
        _say(plan_report.show_found(found) + "\n")
        planned = found[0]
    else:
        planned = make_plan(config, topology, assumed, allowed)

    compiled = _compiled(args, planned)
    if compiled and compiled.fits:
        planned = planned.with_sent(by_axis(list(compiled.sent)))
    if args.json:
        record = planned.as_json()
        if compiled:
            record["compiled"] = compiled.as_json()
        return _say(json.dumps(record))
    _say(plan_report.show(args.config, planned, compiled))
    if args.splits:
        _say("\n" + plan_report.show_splits(planned))


def _compiled(args: Args, planned: Any) -> Any:
    """What the compiler of TPUs makes of a plan, where it is here and wanted."""
    from t5x_lite.study import tpu_compiler

    if args.no_compile or not planned.topology.chip.is_tpu:
        return None
    if not tpu_compiler.is_installed():
        print("plan: no libtpu here: estimates alone", file=sys.stderr)
        return None
    from t5x_lite.resolve import resolve_without_text

    print("plan: compiling the step with libtpu", file=sys.stderr)
    raw_tokens = planned.tokens.raw * planned.rows
    return tpu_compiler.compile_step(
        resolve_without_text(planned.config), raw_tokens, planned.topology
    )


def doctor(args: Args) -> None:
    """what is wrong with this machine, this installation, or the place to write to"""
    from t5x_lite.study.doctor import examine

    findings = []
    for finding in examine(args.workdir or "", args.processes):
        _say(str(finding))
        findings.append(finding)
    wrong = sum(finding.is_fatal for finding in findings)
    if wrong:
        what = "one thing is" if wrong == 1 else f"{wrong} things are"
        raise UserError(UNFIT, f"doctor: {what} wrong, see above")


_FUNCTIONS = (
    prepare,
    plan,
    train,
    finetune,
    evaluate,
    generate,
    fill,
    score,
    embed,
    compare,
    report,
    inspect,
    import_,
    export,
    doctor,
)
COMMANDS = {function.__name__.rstrip("_"): function for function in _FUNCTIONS}


# The command line.


def _number(low: float, high: float = float("inf")) -> Callable[[str], float]:
    """A converter of text to a number of the type of `low`, in that range."""

    def convert(text: str) -> float:
        value = type(low)(text)
        if not low <= value <= high or value == float("inf"):
            expected = f"at least {low}" if high == float("inf") else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"got {text}, expected a number, {expected}")
        return value

    convert.__name__ = type(low).__name__  # argparse names it where the text is no number
    return convert


def parser() -> argparse.ArgumentParser:
    """The command line."""
    description = "Pretrain BERT, T5 and GPT from one codebase, and compare."
    main = argparse.ArgumentParser("t5x_lite", description=description)
    main.add_argument("--version", action="version", version=__version__)
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, function in COMMANDS.items():
        command = commands.add_parser(
            name, help=function.__doc__, description=function.__doc__, allow_abbrev=False
        )
        _add_common_options(command, name)
        if name in _OPTIONS:
            _OPTIONS[name](command)
    return main


def _add_common_options(command: argparse.ArgumentParser, name: str) -> None:
    if name in ("prepare", "train", "compare", "inspect", "plan"):
        command.add_argument(
            "--config", help="a config file, or the name of one that ships, such as gpt_tiny"
        )
        command.epilog = (
            "Any setting can be given as --config.KEY=VALUE, such as --config.training.steps=100."
        )
    if name not in ("prepare", "inspect"):
        command.add_argument("--workdir", help="the directory of the run")
    if name not in ("import", "doctor"):
        help = (
            "a module of your own that the run's objective or source may be imported from; may be "
            "repeated"
        )
        command.add_argument(
            "--allow-code", action="append", default=[], metavar="MODULE", help=help
        )
    if name in ("evaluate", "generate", "fill", "score", "embed", "export"):
        help = "shard the model over all devices, such as fsdp=4,tensor=2; left out: use one device"
        command.add_argument("--mesh", default="", help=help)
        command.add_argument("--distributed", action="store_true", help=_DISTRIBUTED)
    if name in ("generate", "fill", "score", "embed"):
        command.add_argument("text", nargs="+", help="one or several texts")
    if name in ("generate", "fill", "score"):
        command.add_argument("--json", action="store_true", help="one line of JSON for each text")


def _train_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--distributed", action="store_true", help=_DISTRIBUTED)
    help = "the directory from a run that has ended, where its lock cannot tell"
    command.add_argument("--take-over", action="store_true", help=help)


def _finetune_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--init", help="the directory of the run, or of Hugging Face's files, to begin with")
    add(
        "--task",
        help="one that ships, such as sst2; my_tasks.py:mine; or 'classify(file.tsv, text=…)'",
    )
    add("--seeds", type=_number(1), default=1, help="how many to train")
    help = "a setting with several values, KEY=VALUE,VALUE; the best is chosen; may be repeated"
    add("--grid", action="append", default=[], metavar="KEY=VALUES", help=help)
    help = "draw the parameters at random: what the task alone teaches such a model"
    add("--from-scratch", action="store_true", help=help)
    help = "full, lora(rank=8), prefix(20), prompt(20), adapter(64), bitfit, probe or last(2)"
    add("--adapt", default="full", metavar="WAY", help=help)
    command.set_defaults(config=None)


_DISTRIBUTED = "this is one of several processes; the cluster knows the others"


def _compare_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--seeds", type=_number(1), help="how many each cell is trained with")
    help = "a setting with several values, KEY=VALUE,VALUE: a cell for each; may be repeated"
    add("--grid", action="append", default=[], metavar="KEY=VALUES", help=help)
    help = "train these alone, NAME,NAME; the same command without it writes the report"
    add("--cells", default="", metavar="NAMES", help=help)
    help = "how many runs to train at once, each on its share of a CPU's cores"
    add("--jobs", type=_number(1), default=1, help=help)
    help = "show what each cell costs and how long it will take, and train nothing"
    add("--dry-run", action="store_true", help=help)
    add("--distributed", action="store_true", help=_DISTRIBUTED)


def _report_options(command: argparse.ArgumentParser) -> None:
    help = "runs to show side by side; left out: what is in --workdir"
    command.add_argument("runs", nargs="*", metavar="RUN", help=help)


def _evaluate_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--json", action="store_true", help="one line of JSON")
    add("--task", default="", help="a task instead of the text, such as blimp; see finetune")
    add("--split", default="validation", choices=["train", "validation", "test"])
    add("--shots", type=_number(0), default=0, help="solved examples in the prompt")
    add("--seed", type=_number(0, 2**31 - 1), default=0, help="which examples they are")
    add("--limit", type=_number(0), default=0, help="the first so many examples alone")
    help = "score the question given each answer, not the answer given the question"
    add("--channel", action="store_true", help=help)
    add("--predictions", default="", help="a file to write, a line of JSON for each example")


def _inspect_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--examples", type=_number(0), default=3, help="rows or examples to show")
    command.add_argument("--task", help="a task that such a model would learn, as finetune has it")
    command.add_argument("--store", help="a token store that prepare made, instead of a config")


def _prepare_options(command: argparse.ArgumentParser) -> None:
    help = "read and encode on the workers of Apache Beam, with its OPTIONS; '': on this machine"
    command.add_argument("--beam", metavar="OPTIONS", help=help)


def _plan_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    help = "the devices: v5e:4x4, v5p:8x8x8, 2*v6e:16x16 (slices), h100:8x8 (nodes of 8), cpu:8"
    add("--topology", default="cpu:1", help=help)
    add("--json", action="store_true", help="one line of JSON, with how each parameter is split")
    add("--search", action="store_true", help="rank all meshes, with remat and without")
    help = "the same rows a device on 8 to 4,096 devices; with --workdir also a page with a picture"
    add("--scale", action="store_true", help=help)
    add("--splits", action="store_true", help="also how each parameter is split")
    help = "of TPUs estimates alone, though libtpu is installed"
    add("--no-compile", action="store_true", help=help)
    add("--mfu", type=_number(1e-6, 1.0), help="that you expect; left out: the roofline's")
    add("--dollars", type=_number(0.0), help="for a device and hour")
    add("--watts", type=_number(0.0), help="of a device")
    add("--tflops", type=_number(1e-3), help="10¹² FLOP/s of a device at its peak")


def _doctor_options(command: argparse.ArgumentParser) -> None:
    help = "that the run is meant to have"
    command.add_argument("--processes", type=_number(1), help=help)


def _fill_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--top", type=_number(1), default=5, help="words to show for each blank")


def _embed_options(command: argparse.ArgumentParser) -> None:
    help = "mean of all positions, cls: the first position of an encoder, none: all of them"
    command.add_argument("--pooling", choices=["mean", "cls", "none"], default="mean", help=help)
    help = "a .npy file for the array [texts, d_model], instead of a line of JSON for each text"
    command.add_argument("--out", default="", help=help)


def _import_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--from", choices=["hf"], default="hf", help="whose files they are")
    command.add_argument("--tokenizer", default="", help="where its files are, if elsewhere")
    help = "append the special ids that the tokenizer lacks, such as [MASK]"
    command.add_argument("--add-specials", action="store_true", help=help)
    command.add_argument("path", help="the directory of the model")


def _export_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--to", choices=["hf"], default="hf", help="whose files are written")
    types = ("float32", "bfloat16", "float16")
    command.add_argument("--dtype", choices=types, default="float32", help="of what is written")
    updates = command.add_mutually_exclusive_group()
    help = "add LoRA's updates to the weights"
    updates.add_argument("--merge", dest="lora", action="store_const", const="merge", help=help)
    help = "write LoRA's updates and the head of the task alone, for peft"
    updates.add_argument("--adapter", dest="lora", action="store_const", const="adapter", help=help)
    command.add_argument("path", help="the directory to write")


def _score_options(command: argparse.ArgumentParser) -> None:
    help = "the text before them; for an encoder, a text with one blank, ___, which they fill"
    command.add_argument("--context", default="", help=help)


def _generate_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--max-new-tokens", type=_number(1), default=64, help="tokens to write at most")
    add("--temperature", type=_number(0.0), default=0.0, help="0 is greedy")
    add("--top-k", type=_number(0), default=0, help="sample from the k likeliest only; 0: all")
    add(
        "--top-p",
        type=_number(1e-6),
        default=1.0,
        help="sample from the likeliest that hold this probability",
    )
    add("--seed", type=_number(0, 2**31 - 1), default=0)
    add("--num-beams", type=_number(1), default=1, help="more: the best text of a beam search")
    add("--length-penalty", type=_number(0.0), default=0.6, help="of the beam search; 0: none")
    add(
        "--stop",
        action="append",
        default=[],
        help="end before this string; may be given several times",
    )
    add(
        "--examples", help='a file of JSON lines {"input": …, "target": …} to begin the prompt with'
    )
    add("--shots", type=_number(0), help="how many of them, drawn by the seed; all if left out")
    add("--template", help="how an example is written: '{input} => {target}\\n'")


_OPTIONS = {
    "compare": _compare_options,
    "report": _report_options,
    "train": _train_options,
    "finetune": _finetune_options,
    "evaluate": _evaluate_options,
    "doctor": _doctor_options,
    "inspect": _inspect_options,
    "plan": _plan_options,
    "prepare": _prepare_options,
    "fill": _fill_options,
    "embed": _embed_options,
    "import": _import_options,
    "export": _export_options,
    "score": _score_options,
    "generate": _generate_options,
}


def parse(argv: Sequence[str]) -> Args:
    """Arguments, and the --config.KEY=VALUE overrides among them in order."""
    overrides, rest = [], []
    words = iter(argv)
    for word in words:
        if not word.startswith("--config."):
            rest.append(word)
            continue
        override = word.removeprefix("--config.")
        if "=" not in override:
            value = next(words, "--")
            if value.startswith("--"):
                raise UserError(USAGE, f"{word}: got no value, expected {word}=VALUE")
            override += f"={value}"
        overrides.append(override)
    args, unknown = parser().parse_known_args(rest)
    if unknown:
        raise UserError(
            USAGE, f"{args.command}: got {unknown[0]}, {_suggest_option(args, unknown[0])}"
        )
    args.overrides = overrides
    if overrides and not hasattr(args, "config"):
        raise UserError(USAGE, f"{args.command}: takes no --config settings")
    return args


def _suggest_option(args: Args, option: str) -> str:
    """What was meant: a setting written without --config and its section, or an option like it."""
    from t5x_lite.config_files import find_setting
    from t5x_lite.errors import nearest

    name, equals, value = option.partition("=")
    setting = find_setting(name.lstrip("-").replace("-", "_"))
    if setting and hasattr(args, "config"):
        return f"did you mean --config.{setting}{equals}{value}?"
    options = [
        f"--{known.replace('_', '-')}"
        for known in vars(args)
        if known not in ("command", "text", "path")
    ]
    return "which is no option; " + nearest(name, options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        with foreseen_errors():
            args = parse(sys.argv[1:] if argv is None else argv)
            if args.command not in ("prepare", "plan", "doctor"):
                unused = check_platforms()
                if unused:
                    print(f"t5x_lite: {unused}", file=sys.stderr)
            if hasattr(args, "mesh") or args.command == "compare":
                _share(args)
            COMMANDS[args.command](args)
            storage.push_all()
        return 0
    except UserError as error:
        code, message = error.code, storage.with_addresses(str(error))
    except KeyboardInterrupt:
        code, message = INTERRUPTED, "interrupted; what was saved is kept"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # like a program that SIGPIPE ends
    print(f"t5x_lite: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
