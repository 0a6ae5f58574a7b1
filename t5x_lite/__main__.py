"""The commands: python -m t5x_lite COMMAND. Bad input is one sentence and an exit code, never a traceback."""

import argparse
import json
import os
import sys
from pathlib import Path

from t5x_lite import __version__
from t5x_lite.errors import INTERRUPTED, IO_ERROR, OUT_OF_MEMORY, USAGE, Refusal


def _config(args, schema=None):
    from t5x_lite.config import RunConfig
    from t5x_lite.data import layouts
    from t5x_lite.settings import load

    if not args.config:
        raise Refusal(USAGE, f"{args.command}: --config=FILE is missing; --config=gpt_tiny is one that ships")
    loaded = load(args.config, args.settings, schema or RunConfig)

    for member in getattr(loaded, "members", {"": loaded}).values():
        layouts.plan(member)
    return loaded


def _workdir(args) -> Path:
    if not args.workdir:
        raise Refusal(USAGE, f"{args.command}: --workdir=DIR is missing; name the directory of the run")
    return Path(args.workdir)


def _model(args):
    from t5x_lite import api
    from t5x_lite.training.loop import setup_jax

    workdir = _workdir(args)
    setup_jax()
    return api.load(workdir)


def _say(text: str) -> None:
    print(text, flush=True)


def prepare(args) -> None:
    """text → tokenizer and token store, ahead of training"""
    from t5x_lite.data.prepare import prepare

    _say(f"store: {prepare(_config(args).data, _say).path}")


def train(args) -> None:
    """pretrain a model; the same command goes on where it was stopped"""
    config, workdir = _config(args), _workdir(args)
    from t5x_lite.data.prepare import prepare

    corpus = prepare(config.data, _say)
    _processes(args)
    from t5x_lite.training.loop import train

    train(config, corpus, workdir)


def _processes(args) -> None:
    """Join the other processes of the run, where launch/local or the cluster says there are some."""
    import jax

    count = os.environ.get("T5X_LITE_PROCESSES")
    if count:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        number = int(os.environ["T5X_LITE_PROCESS"])
        jax.distributed.initialize(os.environ["T5X_LITE_COORDINATOR"], int(count), number)
    elif args.distributed:
        jax.distributed.initialize()


def evaluate(args) -> None:
    """loss and accuracy of a trained model on its whole validation split"""
    import dataclasses

    import jax

    from t5x_lite.config import Mesh
    from t5x_lite.data.prepare import prepare
    from t5x_lite.training import rundir
    from t5x_lite.training.loop import Run, setup_jax

    workdir = _workdir(args)
    setup_jax(rundir.read(workdir)[0].model.dtype)
    trained = rundir.load(workdir)
    corpus = prepare(trained.config.data, _say)
    rundir.same_text(workdir, corpus)
    here = jax.local_devices()[:1]  # whatever mesh it was trained on
    run = Run(dataclasses.replace(trained.config, mesh=Mesh()), corpus, here)
    with run.within():
        figures = run.evaluate(trained.params)
    _say(json.dumps({"step": trained.step, "split": "validation", **figures}))


def generate(args) -> None:
    """continue texts"""
    from t5x_lite.inference import few_shot

    names = ("max_new", "temperature", "top_k", "top_p", "seed", "beams", "length_penalty")
    options = {name: getattr(args, name) for name in names} | {"stop": tuple(map(_line_ends, args.stop))}
    texts = args.text
    if not args.examples and (args.shots is not None or args.template):
        raise Refusal(USAGE, "generate: --shots and --template are of examples; name their file with --examples")
    if args.examples:
        examples = few_shot.read(Path(args.examples))
        template = _line_ends(args.template or few_shot.TEMPLATE)
        shots = len(examples) if args.shots is None else args.shots
        texts = [few_shot.prompt(examples, text, shots, args.seed, template) for text in texts]
        options["stop"] = options["stop"] or ("\n",)
    model = _model(args)
    if len(texts) == 1 and not args.json:
        pieces = model.stream(texts[0], **options)
        print(args.text[0], next(pieces, ""), sep="", end="", flush=True)  # nothing, where it is refused
        for piece in pieces:
            print(piece, end="", flush=True)
        return _say("")
    written = model.generate(texts, **options)
    for text, more in zip(args.text, written, strict=True):
        _say(json.dumps({"text": text, "written": more}, ensure_ascii=False) if args.json else text + more)


def _line_ends(text: str) -> str:
    """As typed in a shell, where \\n is two characters."""
    return text.replace("\\n", "\n")


def fill(args) -> None:
    """fill the blanks (___) of texts"""
    model = _model(args)
    for text in args.text:
        filled = model.fill(text, args.top)
        if args.json:
            _say(json.dumps({"text": text, "blanks": filled}, ensure_ascii=False))
            continue
        _say(text)
        for number, made in enumerate(filled, 1):
            shown = made if isinstance(made, str) else ", ".join(f"{word} {p:.1%}" for word, p in made)
            _say(f"  {number}. {shown}")


def score(args) -> None:
    """log-probability and bits per byte of texts, or of choices given a context"""
    model = _model(args)
    scores = model.score(args.text, args.context)
    if args.json:
        return [_say(json.dumps(one._asdict(), ensure_ascii=False)) for one in scores] and None
    lossy = "" if model.tokenizer.lossless else " (lossy tokenizer: not comparable)"
    _say(f"{scores[0].kind.replace('_', ' ')} in nats, tokens, bits per byte{lossy}, text")
    for one in scores:
        _say(f"{one.nats:10.3f}  {one.tokens:5d}  {one.bits_per_byte:6.3f}  {one.text}")
    if args.context and len(scores) > 1:
        best = max(scores, key=lambda one: one.nats), min(scores, key=lambda one: one.bits_per_byte)
        _say(f"likeliest: {best[0].text!r}; by byte: {best[1].text!r}")


def import_(args) -> None:
    """make a run directory of somebody's model"""
    from t5x_lite.interop import exchange

    exchange.bring(Path(args.path), _workdir(args), args.tokenizer, _say)


def export(args) -> None:
    """write a trained model in the files of others"""
    from t5x_lite.interop import exchange

    exchange.take(_workdir(args), Path(args.path), args.dtype, _say)


def compare(args) -> None:
    """train the members of a comparison side by side, and write report.html"""
    from t5x_lite.config import CompareConfig

    config = _config(args, CompareConfig)
    workdir = _workdir(args)
    from t5x_lite.study import compare, report

    results = compare.compare(config, workdir, _say)
    _say(report.markdown(results))
    _say(f"written: {workdir / 'report.html'} and report.md")


def report(args) -> None:
    """write report.html and report.md of a run or a comparison again"""
    from t5x_lite.study import compare

    compare.again(_workdir(args))
    _say(f"written: {_workdir(args) / 'report.html'} and report.md")


def inspect(args) -> None:
    """what a config shows the model: the first rows in words, and the ledger; or what a token store holds"""
    from t5x_lite import inspection

    if args.store and args.config:
        raise Refusal(USAGE, "inspect: got --store and --config; give one of them")
    if args.store:
        from t5x_lite.data.corpus import open_store

        return _say(inspection.store(open_store(Path(args.store)), args.examples))
    config = _config(args)
    from t5x_lite.data.prepare import prepare
    from t5x_lite.study.compare import flops_per_row
    from t5x_lite.training import rundir

    corpus = prepare(config.data, _say)
    config = rundir.resolve(config, corpus.tokenizer.vocabulary)
    _say(inspection.show(config, corpus, args.examples))
    _say("")
    _say(inspection.ledger(config, corpus, flops_per_row(config, inspection.batches.make(config, corpus, "train"))))


_ALL = (prepare, train, evaluate, generate, fill, score, compare, report, inspect, import_, export)
COMMANDS = {f.__name__.rstrip("_"): f for f in _ALL}


def _at_least(low, high=float("inf")):
    """A converter that refuses numbers below (or above), of the same type."""

    def convert(text):
        value = type(low)(text)
        if not low <= value <= high or value == float("inf"):
            wanted = f"from {low} on" if high == float("inf") else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"got {text}, expected a number {wanted}")
        return value

    convert.__name__ = type(low).__name__  # argparse names it where the text is no number
    return convert


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser("t5x_lite", description="Pretrain BERT, T5 and GPT from one codebase, and compare.")
    main.add_argument("--version", action="version", version=__version__)
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, function in COMMANDS.items():
        one = commands.add_parser(name, help=function.__doc__, description=function.__doc__, allow_abbrev=False)
        if name in ("prepare", "train", "compare", "inspect"):
            one.add_argument("--config", help="a config file, or the name of one that ships, such as gpt_tiny")
            one.epilog = "Any setting can be given as --config.KEY=VALUE, such as --config.training.steps=100."
        if name not in ("prepare", "inspect"):
            one.add_argument("--workdir", help="the directory of the run")
    commands.choices["train"].add_argument(
        "--distributed", action="store_true", help="this is one of several processes; the cluster knows the others"
    )
    commands.choices["inspect"].add_argument("--examples", type=_at_least(0), default=3, help="rows to show")
    commands.choices["inspect"].add_argument("--store", help="a token store that prepare made, instead of a config")
    commands.choices["fill"].add_argument("--top", type=_at_least(1), default=5, help="words to show for each blank")
    commands.choices["import"].add_argument("--from", choices=["hf"], default="hf", help="whose files they are")
    commands.choices["import"].add_argument("--tokenizer", default="", help="where its files are, if elsewhere")
    commands.choices["import"].add_argument("path", help="the directory of the model")
    commands.choices["export"].add_argument("--to", choices=["hf"], default="hf", help="whose files are written")
    types = ("float32", "bfloat16", "float16")
    commands.choices["export"].add_argument("--dtype", choices=types, default="float32", help="of what is written")
    commands.choices["export"].add_argument("path", help="the directory to write")
    for name in ("generate", "fill", "score"):
        commands.choices[name].add_argument("text", nargs="+", help="one or several texts")
        commands.choices[name].add_argument("--json", action="store_true", help="one line of JSON for each text")
    help = "what stands before the texts; to an encoder, a text with one blank, ___, which they fill"
    commands.choices["score"].add_argument("--context", default="", help=help)
    one = commands.choices["generate"]
    one.add_argument("--max-new", type=_at_least(1), default=64, help="tokens to write at most")
    one.add_argument("--temperature", type=_at_least(0.0), default=0.0, help="0 is greedy")
    one.add_argument("--top-k", type=_at_least(0), default=0, help="sample from the k likeliest only; 0: all")
    one.add_argument(
        "--top-p", type=_at_least(1e-6), default=1.0, help="sample from the likeliest that hold this probability"
    )
    one.add_argument("--seed", type=_at_least(0, 2**31 - 1), default=0)
    one.add_argument("--beams", type=_at_least(1), default=1, help="more: the best text of a beam search")
    one.add_argument("--length-penalty", type=_at_least(0.0), default=0.6, help="of the beam search; 0: none")
    one.add_argument("--stop", action="append", default=[], help="end before this string; may be given several times")
    one.add_argument("--examples", help='a file of JSON lines {"input": …, "target": …} to begin the prompt with')
    one.add_argument("--shots", type=_at_least(0), help="how many of them, drawn by the seed; all if left out")
    one.add_argument("--template", help="how an example is written: '{input} => {target}\\n'")
    return main


def _parse(argv: list[str]):
    """Arguments, and the --config.KEY=VALUE settings among them in order."""
    settings, rest = [], []
    words = iter(argv)
    for word in words:
        if word.startswith("--config."):
            setting = word.removeprefix("--config.")
            if "=" not in setting:
                value = next(words, "--")
                if value.startswith("--"):
                    raise Refusal(USAGE, f"{word}: got no value, expected {word}=VALUE")
                setting += f"={value}"
            settings.append(setting)
        else:
            rest.append(word)
    args = parser().parse_args(rest)
    args.settings = settings
    if settings and not hasattr(args, "config"):
        raise Refusal(USAGE, f"{args.command}: takes no --config settings")
    return args


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        args = _parse(sys.argv[1:] if argv is None else argv)
        COMMANDS[args.command](args)
        return 0
    except Refusal as refusal:
        code, message = refusal.code, str(refusal)
    except KeyboardInterrupt:
        code, message = INTERRUPTED, "interrupted; what was saved is kept"
    except MemoryError:
        code, message = OUT_OF_MEMORY, _MEMORY
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as a program that SIGPIPE ends
    except OSError as error:
        code, message = IO_ERROR, f"{error.filename or 'input or output'}: {error.strerror or error}"
    except RuntimeError as error:  # jax.errors.JaxRuntimeError, without importing jax here
        if "RESOURCE_EXHAUSTED" not in str(error) and "out of memory" not in str(error).lower():
            raise
        code, message = OUT_OF_MEMORY, _MEMORY
    print(f"t5x_lite: {message}", file=sys.stderr)
    return code


_MEMORY = "out of memory; lower data.batch_size, raise training.microbatches, or set model.remat=True"


if __name__ == "__main__":
    sys.exit(main())
