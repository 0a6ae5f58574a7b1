"""The one schema: every setting, its default, its range and what it means.

`get_config()` in a config file returns a ConfigDict that holds only differences from these defaults. `load` turns
it, with the overrides of the command line, into frozen dataclasses; nothing past this file sees a ConfigDict.
"""

import ast
import dataclasses
import json
import math
import runpy
import types
from dataclasses import dataclass
from pathlib import Path

from t5x_lite.errors import BAD_CONFIG, NO_FILE, USAGE, Refusal, nearest

ARCHITECTURES = ("encoder", "decoder", "prefix_decoder", "encoder_decoder")


def at_least(low, default):
    """A field whose value must be ≥ low."""
    return dataclasses.field(default=default, metadata={"low": low})


def between(low, high, default):
    """A field whose value must lie in [low, high]."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high})


def one_of(*options, default=None):
    """A field whose value must be one of the options, the first of them unless a default is given."""
    return dataclasses.field(default=options[0] if default is None else default, metadata={"options": options})


@dataclass(frozen=True)
class Lengths:
    row: int = at_least(0, 0)  # positions of a one-stack row (encoder, decoder, prefix_decoder)
    inputs: int = at_least(0, 0)  # encoder positions of an encoder_decoder row
    targets: int = at_least(0, 0)  # decoder positions of an encoder_decoder row


@dataclass(frozen=True)
class Data:
    source: str = "python_docs"  # python_docs (built in), or a text file, a directory or a glob of .txt files
    document: str = one_of("file", "line", "block")  # what one document is: a file, a line, a blank-line block
    validation_source: str = ""  # text held out; empty: a share of `source`
    validation_fraction: float = between(0.0, 0.9, 0.05)  # share of documents held out, by a hash of their text
    tokenizer: str = "sentencepiece(vocab_size=8192)"  # trained on the source; or bytes; or a path to a .model
    store: str = ""  # where the tokens are kept; empty: in the cache, named by a hash of what made it
    batch_size: int = at_least(1, 32)  # rows of a step, over all devices
    lengths: Lengths = Lengths()
    block: int = at_least(0, 0)  # tokens that stay together when shuffling; 0: the objective's window
    split_documents: bool = False  # cut the window at document ends first, each piece a segment of its own
    workers: int = between(1, 64, 1)  # threads that make batches ahead


@dataclass(frozen=True)
class Model:
    architecture: str = one_of(*ARCHITECTURES, default="decoder")  # who may look where
    layers: int = at_least(1, 4)  # blocks in each stack
    width: int = at_least(1, 128)  # of the residual stream, d_model
    heads: int = at_least(1, 4)
    head_size: int = at_least(0, 0)  # 0: width / heads
    ff_width: int = at_least(0, 0)  # inner width of the feed-forward part, d_ff; 0: 4 × width
    activation: str = one_of("gelu", "gelu_tanh", "relu", "silu")
    gated: bool = False  # act(x U) * (x V) instead of act(x U): GEGLU, SwiGLU, … (Shazeer, 2020)
    norm: str = one_of("layer_norm", "rms_norm")
    norm_position: str = one_of("pre", "post")  # before each part (GPT-2, T5) or after its residual sum (BERT)
    norm_epsilon: float = between(0.0, 0.1, 1e-6)
    embedding_norm: bool = False  # normalise the sum of the embeddings (BERT)
    bias: bool = True  # in dense layers and LayerNorm
    positions: str = one_of("learned", "sinusoidal", "relative", "rotary", "none")
    max_length: int = at_least(0, 0)  # rows of the learned position table; 0: the longest stack of a row
    relative_buckets: int = at_least(4, 32)  # T5's relative positions: how many buckets …
    relative_distance: int = at_least(5, 128)  # … and the distance from which all share the last
    token_types: int = at_least(0, 0)  # rows of the token type table (BERT: 2)
    vocab_size: int = at_least(0, 0)  # 0: the tokenizer's size
    vocab_multiple: int = at_least(1, 128)  # embedding rows are padded to a multiple, so that they shard
    tied: bool = True  # the output layer is the embedding table
    scale_logits: bool = False  # tied hidden states times width^-½ (T5 1.0)
    scale_attention: bool = True  # attention logits times head_size^-½; T5 has it in the initialisation
    mlm_head: bool = False  # BERT's output head: dense, activation, norm; then the table and a bias
    init: str = one_of("normal", "truncated", "fan_in")  # of dense kernels: init_stddev, or fan_in^-½ (T5)
    init_stddev: float = between(0.0, 10.0, 0.02)
    embedding_stddev: float = between(0.0, 10.0, 0.02)
    depth_scaled_init: bool = False  # kernels that write to the residual stream: times (2 × layers)^-½ (GPT-2)
    dropout: float = between(0.0, 0.9, 0.0)  # on embeddings, attention weights, hidden and outputs of each part
    dtype: str = one_of("float32", "bfloat16", "float64")  # of the computation; float64 is for proofs
    scan: bool = True  # one compiled block for all layers; False unrolls them
    remat: bool = False  # recompute each block in the backward pass


@dataclass(frozen=True)
class Mesh:
    data: int = at_least(-1, -1)  # devices that split the batch; -1: all that are left
    fsdp: int = at_least(1, 1)  # devices that split the batch and the parameters
    tensor: int = at_least(1, 1)  # devices that split heads, feed-forward width and vocabulary


@dataclass(frozen=True)
class Optimizer:
    name: str = one_of("adamw", "adafactor")
    learning_rate: float = between(0.0, 100.0, 1e-3)  # the peak
    schedule: str = one_of("cosine", "linear", "inverse_square_root", "constant")  # after the warm-up
    unit: str = one_of("steps", "tokens")  # what warmup and decay count; tokens are raw tokens read
    warmup: int = at_least(0, 100)  # linear, from warmup_from × peak to the peak
    warmup_from: float = between(0.0, 1.0, 0.0)  # 1: held at the peak (T5)
    decay: int = at_least(0, 0)  # where cosine and linear end, the warm-up included; 0: with the run
    final: float = between(0.0, 1.0, 0.0)  # share of the peak that cosine and linear end at
    beta1: float = between(0.0, 0.9999, 0.9)  # AdamW
    beta2: float = between(0.0, 0.99999, 0.999)  # AdamW
    epsilon: float = between(0.0, 1.0, 1e-8)  # AdamW
    weight_decay: float = between(0.0, 10.0, 0.0)  # AdamW; decoupled, on kernels and tables alone
    clip: float = at_least(0.0, 1.0)  # largest global norm of the gradient; 0: none


@dataclass(frozen=True)
class Training:
    steps: int = at_least(1, 1000)
    log_every: int = at_least(1, 50)
    eval_every: int = at_least(0, 0)  # evaluate the whole validation split every n steps; 0: at the end only
    checkpoint_every: int = at_least(0, 0)  # save every n steps; 0: at the end only
    keep_every: int = at_least(0, 0)  # besides the newest checkpoint, keep those of every n steps; 0: none
    microbatches: int = at_least(1, 1)  # the batch in n parts, gradients summed: same result, less memory
    z_loss: float = between(0.0, 1.0, 0.0)  # coefficient of log²Z (T5: 1e-4)
    label_smoothing: float = between(0.0, 0.99, 0.0)
    loss_chunk: int = at_least(0, 0)  # positions whose logits exist at a time; 0: all
    profile: tuple = ()  # (first, last) step written as a jax.profiler trace to WORKDIR/profile


@dataclass(frozen=True)
class RunConfig:
    seed: int = between(0, 2**31 - 1, 0)
    objective: str = "causal_lm"  # what is hidden and what is asked, e.g. span_corruption(mean_span_length=2)
    data: Data = Data()
    model: Model = Model()
    mesh: Mesh = Mesh()
    optimizer: Optimizer = Optimizer()
    training: Training = Training()


@dataclass(frozen=True)
class CompareConfig:
    """Several runs, read by `compare`; the prompts show what each model does."""

    title: str = "Comparison"
    members: dict = dataclasses.field(default_factory=dict)  # name → RunConfig
    ngram: bool = True  # beside causal models: a unigram and a Kneser-Ney trigram model of the same tokens
    blanks: tuple = ()  # sentences with a ___ that encoders fill with a word
    spans: tuple = ()  # texts with ___ where models of span_corruption fill in any number of words
    prompts: tuple = ()  # texts that language models continue


def parse_call(text: str, key: str) -> tuple[str, dict]:
    """Read `name` or `name(option=value, …)`; values are literals.

    >>> parse_call("span_corruption(noise_density=0.2)", "objective")
    ('span_corruption', {'noise_density': 0.2})
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
            raise ValueError
        return node.func.id, {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
    except (SyntaxError, ValueError) as error:
        raise Refusal(BAD_CONFIG, f"{key}={text!r}: expected a name or name(option=value, …)") from error


def _convert(value, kind, key: str):
    """`value` as the field's type, or a Refusal; text from the command line is read as a literal."""
    expected = f"{key}: got {value!r}, expected {'a list' if kind is tuple else kind.__name__}"
    if kind is str:
        if isinstance(value, str):
            return value
        raise Refusal(BAD_CONFIG, expected)
    if isinstance(value, str):
        try:
            value = ast.literal_eval({"true": "True", "false": "False"}.get(value.lower(), value))
        except (SyntaxError, ValueError, TypeError) as error:
            raise Refusal(BAD_CONFIG, expected) from error
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise Refusal(BAD_CONFIG, expected)
    return value


def build(schema, values: dict, path: str = ""):
    """A frozen dataclass from nested dicts: unknown keys, wrong types and values out of range are refused."""
    fields = {f.name: f for f in dataclasses.fields(schema)}
    if not isinstance(values, dict):
        inside = f"keys such as {path}{next(iter(fields))}"
        raise Refusal(BAD_CONFIG, f"{path.rstrip('.') or 'the config'}: got {values!r}, expected {inside}")
    made = {}
    for name, value in values.items():
        key = f"{path}{name}"
        if name not in fields:
            raise Refusal(BAD_CONFIG, f"{key}: no such setting; {nearest(name, fields)}")
        field = fields[name]
        if dataclasses.is_dataclass(field.type):
            made[name] = build(field.type, value, key + ".")
            continue
        if field.type is dict:
            if not isinstance(value, dict) or not value:
                raise Refusal(BAD_CONFIG, f"{key}: got {value!r}, expected names with the settings of a run each")
            made[name] = {k: build(RunConfig, v, f"{key}.{k}.") for k, v in value.items()}
            continue
        value = made[name] = _convert(value, field.type, key)
        low, high, options = (field.metadata.get(k) for k in ("low", "high", "options"))
        if options and value not in options:
            raise Refusal(BAD_CONFIG, f"{key}: got {value!r}; {nearest(value, options)}")
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            allowed = f"at least {low}" if high is None else f"between {low} and {high}"
            raise Refusal(BAD_CONFIG, f"{key}: got {value}, expected {allowed}")
    return schema(**made)


def to_dict(config) -> dict:
    """The data of a config and nothing else, as it stands in config.json."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def check(config: RunConfig) -> RunConfig:
    """What no single field can know: refuse settings that contradict each other."""
    model, data, training = config.model, config.data, config.training

    def need(ok, message):
        if not ok:
            raise Refusal(BAD_CONFIG, message)

    two = model.architecture == "encoder_decoder"
    used, unused = (("inputs", "targets"), ("row",)) if two else (("row",), ("inputs", "targets"))
    for name in used:
        need(
            getattr(data.lengths, name) > 0,
            f"data.lengths.{name}: got 0; a row of architecture {model.architecture} needs it",
        )
    for name in unused:
        need(
            getattr(data.lengths, name) == 0,
            f"data.lengths.{name}: architecture {model.architecture} has no such length; set data.lengths."
            + " and ".join(used),
        )
    need(
        model.head_size or model.width % model.heads == 0,
        f"model.heads: {model.heads} does not divide model.width {model.width}; change one or set model.head_size",
    )
    need(
        model.positions != "rotary" or (model.head_size or model.width // model.heads) % 2 == 0,
        "model.positions=rotary: needs an even head size; set model.head_size",
    )
    need(
        model.positions != "relative" or model.relative_buckets % 2 == 0,
        f"model.relative_buckets: got {model.relative_buckets}, expected an even number",
    )
    need(
        model.positions != "relative" or model.relative_distance > model.relative_buckets // 2,
        f"model.relative_distance: got {model.relative_distance}, expected more than half of relative_buckets",
    )
    longest = max(data.lengths.row, data.lengths.inputs, data.lengths.targets)
    need(
        model.positions != "learned" or not model.max_length or model.max_length >= longest,
        f"model.max_length: got {model.max_length}, but data.lengths go up to {longest}; raise one or lower the other",
    )
    need(
        data.batch_size % training.microbatches == 0,
        f"training.microbatches: {training.microbatches} does not divide data.batch_size {data.batch_size}",
    )
    need(
        not config.optimizer.weight_decay or config.optimizer.name == "adamw",
        "optimizer.weight_decay: adafactor is used without; set it to 0 or optimizer.name to adamw",
    )
    optimizer = config.optimizer
    need(
        not optimizer.decay or optimizer.decay > optimizer.warmup,
        f"optimizer.decay: got {optimizer.decay}, expected more than optimizer.warmup {optimizer.warmup}, or 0",
    )
    need(
        not model.mlm_head or model.architecture == "encoder",
        f"model.mlm_head: architecture {model.architecture} has none; it is the head of an encoder",
    )
    need(not model.scale_logits or model.tied, "model.scale_logits: needs model.tied=True; set one of them")
    need(
        config.mesh.data != 0,
        "mesh.data: got 0, expected -1 (all that are left) or at least 1",
    )
    profile = training.profile
    need(
        not profile or (len(profile) == 2 and all(type(p) is int for p in profile) and 1 <= profile[0] <= profile[1]),
        f"training.profile: got {list(profile)}, expected [first, last] with 1 <= first <= last",
    )
    return config


def find(name: str) -> Path:
    """The config file of that name: as a path, or among those that ship with the package.

    `configs/gpt_tiny.py`, `gpt_tiny.py` and `gpt_tiny` all name the same file.
    """
    relative = Path(name if name.endswith(".py") else name + ".py")
    shipped = relative.relative_to("configs") if relative.parts[0] == "configs" else relative
    package = Path(__file__).parent
    for path in (relative, package / "configs" / shipped, package.parent / "configs" / shipped):
        if path.is_file():
            return path
    near = sorted(str(p.relative_to(root)) for root in (package, package.parent) for p in root.glob("configs/**/*.py"))
    raise Refusal(NO_FILE, f"--config={name}: no such file; {nearest(str(relative), near or ['a path to a file'])}")


def read(name: str) -> dict:
    """The plain nested dict that the config file's get_config() returns."""
    path = find(name)
    try:
        get_config = runpy.run_path(str(path)).get("get_config")
        found = get_config() if get_config else None
    except Refusal:
        raise
    except Exception as error:  # a config file is a user's program: whatever it raises is a bad config
        raise Refusal(BAD_CONFIG, f"{path}: get_config() failed with {type(error).__name__}: {error}") from error
    found = found.to_dict() if hasattr(found, "to_dict") else found
    if not isinstance(found, dict):
        raise Refusal(BAD_CONFIG, f"{path}: expected a function get_config() that returns a ConfigDict")
    return found


def override(values: dict, settings: list[str]) -> dict:
    """Apply `a.b=value` settings in place and return `values`; the same key twice is refused.

    >>> override({"seed": 1}, ["training.steps=5", "seed=2"])
    {'seed': '2', 'training': {'steps': '5'}}
    """
    seen = set()
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise Refusal(USAGE, f"--config.{setting}: expected --config.KEY=VALUE")
        if key in seen:
            raise Refusal(BAD_CONFIG, f"--config.{key}: given twice; give it once")
        seen.add(key)
        *parents, last = key.split(".")
        at = values
        for parent in parents:
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise Refusal(BAD_CONFIG, f"--config.{key}: {parent} is a single value and has no {last}")
        at[last] = value
    return values


def load(name: str, settings: list[str] = (), schema=RunConfig):
    """Read a config file and overrides into a checked config. Raises Refusal, before jax is imported."""
    values = read(name)
    members = list(values.get("members", ()))
    values = override(values, settings)
    for member in values.get("members", ()) if members and isinstance(values["members"], dict) else ():
        if member not in members:  # a typo in an override, not one member more
            raise Refusal(BAD_CONFIG, f"members.{member}: no such member; {nearest(member, members)}")
    if schema is RunConfig and "members" in values:
        raise Refusal(BAD_CONFIG, f"--config={name} compares several runs; use it with the command compare")
    if schema is CompareConfig and "members" not in values:
        raise Refusal(BAD_CONFIG, f"--config={name} has no members to compare; use it with the command train")
    config = build(schema, values)
    for member in config.members.values() if schema is CompareConfig else (config,):
        check(member)
    return config


def load_json(path: Path, schema=RunConfig):
    """The config of a run directory's config.json, checked like any other."""
    try:
        return build(schema, json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise Refusal(NO_FILE, f"{path}: no such file; expected the directory of a run") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise Refusal(BAD_CONFIG, f"{path}: not a config ({error})") from error


def flatten(values: dict, path: str = "") -> dict:
    """{'a': {'b': 1}} → {'a.b': 1}.

    >>> flatten({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    flat = {}
    for name, value in values.items():
        nested = isinstance(value, dict | types.MappingProxyType)
        flat |= flatten(value, f"{path}{name}.") if nested else {path + name: value}
    return flat
