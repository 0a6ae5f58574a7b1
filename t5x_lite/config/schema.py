"""The one schema: every setting, its default, its range and what it means, and which settings
contradict each other.

The dataclasses check themselves wherever they are built. Config files start from `default()`, the
same settings as a locked ConfigDict; files.py turns it into these dataclasses.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from t5x_lite.config.amounts import IsAmount
from t5x_lite.config.grammar import parse_sources
from t5x_lite.config.ranges import NonNegative, Positive, Range, Share, check_value
from t5x_lite.config.roles import (
    ADAPTATION,
    ADJUSTABLE,
    BUDGET,
    CODE,
    COMPUTATION,
    FORMAT,
    HEADS,
    LOCAL,
    OUTPUT,
    PATH,
    RESUMABLE,
    SENDS,
    SETTINGS,
    SIZE,
    SOURCES,
    TOKENIZER,
    OnlyWith,
    Role,
    type_hints,
)
from t5x_lite.errors import BAD_CONFIG, UserError, nearest

Item = TypeVar("Item")
Architecture = Literal["encoder", "decoder", "prefix_decoder", "encoder_decoder"]
Dropout = Annotated[float, Range(0.0, 0.9)]
Stddev = Annotated[float, Range(0.0, 10.0)]
Seed = Annotated[int, Range(0, 2**31 - 1)]
SequenceLength = Annotated[int, Range(0, 2**24)]


class Checked:
    """A dataclass whose fields are checked on construction: type, range, choice, then what
    contradicts what.
    """

    SECTION = ""  # where its settings stand in a RunConfig, named in errors
    ROLES: ClassVar[tuple[Role, ...]] = ()  # of all its settings

    def __post_init__(self):
        for name, kind in type_hints(type(self)).items():
            key = f"{self.SECTION}.{name}".lstrip(".")
            value = check_value(getattr(self, name), kind, key)
            object.__setattr__(self, name, value)
        for contradiction in self._contradictions():
            raise UserError(BAD_CONFIG, contradiction)

    def _contradictions(self) -> Iterator[str]:
        yield from ()


@dataclass(frozen=True)
class Lengths(Checked):
    """Positions of a row, by the stack that reads them; 0: the architecture has no such stack."""

    SECTION = "data.lengths"
    ROLES = (SIZE,)

    sequence_length: SequenceLength = 0  # of the one stack of an encoder, decoder or prefix_decoder
    inputs: SequenceLength = 0  # of the encoder of an encoder_decoder
    targets: SequenceLength = 0  # of the decoder of an encoder_decoder


@dataclass(frozen=True)
class TextCleaning(Checked):
    """Policy for each kind of unclean text: replace the problem, keep it, skip the
    document, or stop.

    The store's manifest counts each case, and `inspect` shows the counts.
    """

    SECTION = "data.text_cleaning"

    # Bytes that are no UTF-8; replaced by U+FFFD
    invalid_utf8: Literal["replace", "skip", "stop"] = "replace"
    # Half of a UTF-16 pair, as JSON may hold; replaced by U+FFFD
    lone_surrogate: Literal["replace", "skip", "stop"] = "replace"
    # At the start of a document; replaced by nothing
    byte_order_mark: Literal["replace", "keep", "skip", "stop"] = "replace"
    nul: Literal["keep", "replace", "skip", "stop"] = "keep"  # zero bytes; replaced by U+FFFD
    # CR LF, or CR alone; replaced by LF
    carriage_return: Literal["keep", "replace", "skip", "stop"] = "keep"
    # Documents of nothing, or of nothing but white space
    empty: Literal["skip", "stop"] = "skip"
    single_token: Literal["keep", "skip", "stop"] = "keep"  # documents of one token


@dataclass(frozen=True)
class Data(Checked):
    """Text, tokens, and how rows are cut from them."""

    SECTION = "data"

    # python_docs (built in); .txt, .jsonl, .parquet, .csv, .tsv, also compressed, as a path,
    # directory, glob or gs://…; tfds:NAME; hf:NAME; python:module.function; world:NAME (see
    # data/text/sources.py). Several: "a + b", or with rates "3 * a + b".
    source: Annotated[str, LOCAL, SOURCES] = "python_docs"
    # What one document of a text file is; a block ends at a blank line
    document: Literal["file", "line", "block"] = "file"
    field: str = "text"  # the column that holds the text, in JSON lines, parquet and data sets
    text_cleaning: TextCleaning = TextCleaning()
    # Several sources without rates are mixed in proportion to min(tokens, cap)^(1/temperature)
    # (Raffel et al., 2020, §3.5.2); higher: more evenly.
    temperature: Annotated[float, Range(1.0)] = 1.0
    cap: NonNegative = 0  # tokens that a source counts for at most; 0: all it has
    # Held-out text; empty: a share of each source
    validation_source: Annotated[str, LOCAL, SOURCES] = ""
    # Share of documents held out, by a hash of their text
    validation_fraction: Annotated[float, Range(0.0, 0.9)] = 0.05

    # Trained on the source: sentencepiece (model_type bpe or unigram) or byte_level_bpe; bytes; or
    # existing files: a .model, tokenizer.json, vocab.txt (BERT) or vocab.bpe
    tokenizer: Annotated[str, LOCAL, TOKENIZER] = "sentencepiece(vocab_size=8192)"
    # Append to an existing tokenizer the special ids and sentinels that it lacks
    add_specials: bool = False
    # Where the tokens are kept; empty: in the cache, named by a hash of what they were made from
    store: Annotated[str, LOCAL, PATH] = ""
    # That tokenize a large text; 0: one per core
    processes: Annotated[int, Range(0, 256), LOCAL] = 0

    batch_size: Positive = 32  # rows of a step, over all devices
    # Of a task that share a row; 0: as many as there is room for
    examples_per_row: NonNegative = 0
    lengths: Lengths = Lengths()
    # Train on the first so many tokens of the text, again and again; 0: on all of it
    unique_tokens: NonNegative = 0
    # The run ends when any text has been read this often; 0: only after training.steps
    epochs: Annotated[NonNegative, RESUMABLE, BUDGET] = 0
    # Raw tokens that a row reads at most; 0: as many as fit. Rows with room for more are padded
    window: NonNegative = 0
    # Tokens that stay together in shuffling; 0: the longest window of the objectives. Runs with the
    # same block and seed read the same text in the same order. Where a window crosses into another
    # block, an EOS is put between.
    block: NonNegative = 0
    # Cut the window at document ends first, each piece its own segment; what then does not fit the
    # row is left out (`inspect` says how much).
    split_documents: bool = False
    # Threads that make batches ahead; 0: each is made when it is needed
    workers: Annotated[int, Range(0, 64), LOCAL] = 1

    def _contradictions(self) -> Iterator[str]:
        if not self.validation_source and not self.validation_fraction:
            yield (
                "data.validation_fraction: got 0; hold a share out, or name data.validation_source"
            )
        trained_on = [source for _, source in parse_sources(self.source, "data.source")]
        parse_sources(self.validation_source, "data.validation_source")  # raises where it is wrong
        if self.validation_source and self.validation_source in trained_on:
            yield (
                f"data.validation_source={self.validation_source}: it is trained on too; name "
                "another"
            )


@dataclass(frozen=True)
class Model(Checked):
    """One Transformer; BERT, T5 and GPT are settings of it."""

    SECTION = "model"

    architecture: Architecture = "decoder"  # which attention masks the stacks have
    num_layers: Annotated[Positive, SIZE] = 4  # blocks in each stack
    # Blocks in the decoder of an encoder_decoder; 0: num_layers
    num_decoder_layers: Annotated[NonNegative, SIZE] = 0
    d_model: Annotated[Positive, SIZE] = 128  # width of the residual stream

    # Parts are named as `name`, `name(option=value)`, or `my_module.MyPart` of your own: see
    # model/parts/table.py. What mixes positions in a block: attention, lstm(cells=0)
    mixer: Annotated[str, CODE] = "attention"
    num_heads: Annotated[Positive, SIZE] = 4  # of attention
    head_dim: Annotated[NonNegative, SIZE] = 0  # width of a head; 0: d_model / num_heads
    # Heads of keys and values, each for a group of query heads; 1: multi-query; 0: num_heads
    num_kv_heads: Annotated[NonNegative, SIZE] = 0
    # A second decoder that reads each text from its end and predicts what comes before: a
    # bidirectional language model (ELMo: Peters et al., 2018, §3.1)
    backward_decoder: bool = False

    # mlp: act(x U) V; gated_mlp: (act(x U) * x W) V (Shazeer, 2020); experts(num=8, top_k=2, …): a
    # mixture of them, see model/parts/experts.py; none
    feed_forward: Annotated[str, CODE] = "mlp"
    d_ff: Annotated[NonNegative, SIZE] = 0  # inner width of the feed-forward part; 0: 4 × d_model
    # act in the feed-forward part, and in BERT's mlm_head: see model/parts/activations.py
    activation: Annotated[str, CODE] = "gelu"

    # x + attention(norm(x)) + feed_forward(norm(x))
    parallel_residual: bool = False
    # One norm for both (PaLM), or one each (GPT-NeoX)
    shared_norm: Annotated[bool, OnlyWith("parallel_residual")] = True
    # layer_norm (Ba et al., 2016), rms_norm (Zhang and Sennrich, 2019), none
    norm: Annotated[str, CODE] = "layer_norm"
    # Before each part (GPT-2, T5), after its residual sum (BERT), on its output (OLMo 2), or both
    # before it and on its output (Gemma 2)
    norm_position: Literal["pre", "post", "output", "both"] = "pre"
    # Of the mixer in the first layer; False: it reads the embeddings as they are (ModernBERT)
    first_norm: bool = True
    norm_epsilon: Annotated[float, Range(0.0, 0.1)] = 1e-6  # added to the variance
    embedding_norm: bool = False  # normalise the sum of the embeddings (BERT)
    # Each part times a learned number that starts at 0 (Bachlechner et al., 2020)
    rezero: bool = False
    bias: bool = True  # in dense layers and LayerNorm
    # In attention, if not as `bias` says: qkv: of queries, keys and values only (Qwen2)
    attention_bias: Literal["", "none", "qkv", "all"] = ""
    # Normalise queries and keys: each head by itself (Henry et al., 2020; Qwen3), or the features
    # of all heads together (OLMo 2)
    qk_norm: Literal["none", "head", "all"] = "none"

    # How order enters: learned(offset=0), sinusoidal, relative(buckets=32, distance=128) (T5),
    # rotary(base=10000, fraction=1.0, scaling="none"), alibi, shaw(distance=16), transformer_xl,
    # universal, none: see model/parts/positions.py
    positions: Annotated[str, CODE] = "learned"
    # Rows of the learned position table, and the longest piece that `score` reads at a time; 0: the
    # longest stack of a row
    max_length: NonNegative = 0

    # Rules of self-attention beside those of the architecture, all of which must hold:
    # window(size=128), or my_module.MyRule(option=value) of your own, see model/masks.py
    attention_rules: Annotated[tuple[str, ...], CODE] = ()
    # Kinds of layers, repeated through each stack, such as ("local", "global"). Local layers have
    # local_rules and local_positions in place of attention_rules and positions (Gemma, ModernBERT)
    layer_pattern: tuple[str, ...] = ()
    local_rules: Annotated[tuple[str, ...], CODE, OnlyWith("layer_pattern")] = ()
    # rotary(…) or none, as positions are then, too; "": as positions
    local_positions: Annotated[str, CODE, OnlyWith("layer_pattern")] = ""

    # Stacks of one repeated layer (ALBERT)
    shared_layers: Literal["none", "all", "encoder", "decoder"] = "none"
    shared_stacks: bool = False  # encoder and decoder share their parameters, cross-attention aside

    # Width of the embedding tables, which are projected if it is not d_model (ALBERT); 0: d_model
    embedding_size: NonNegative = 0
    scale_embeddings: bool = False  # times the root of their width (Vaswani et al., 2017, §3.4)
    token_types: NonNegative = 0  # rows of the token type table (BERT: 2)
    # Of the sequence label head; 0: as many as the task has, 2 for sentence pairs, else none
    num_classes: Annotated[NonNegative, HEADS] = 0
    # Of the head that reads each position: 2 for the first and the last position of an answer
    # (SQuAD), the labels of a word (named entities); 0: none. A task sets it
    token_classes: Annotated[NonNegative, HEADS] = 0
    vocab_size: NonNegative = 0  # 0: the tokenizer's size
    # Embedding rows are padded to a multiple of this and of mesh.tensor, which splits them
    vocab_multiple: Annotated[Positive, RESUMABLE, COMPUTATION] = 128
    shared_embeddings: bool = True  # encoder and decoder read the same table
    # Encoder and decoder have one table of learned positions and one embedding_norm; False: each
    # has its own (BART)
    shared_input_layers: bool = True
    # The output layer is the (decoder's) embedding table
    tie_embeddings: Annotated[bool, OUTPUT] = True
    # Hidden states times d_model^-½ before the output layer (T5 1.0)
    scale_logits: Annotated[bool, OUTPUT] = False
    # Attention logits times query_width^-½; T5 has it in the initialisation
    scale_attention: bool = True
    query_width: NonNegative = 0  # 0: head_dim
    # Logits are cap · tanh(logits / cap) (Bello et al., 2017; Gemma 2): those of attention, and
    # those of the vocabulary; 0: as they are
    attention_softcap: Annotated[float, Range(0.0)] = 0.0
    logits_softcap: Annotated[float, Range(0.0), OUTPUT] = 0.0
    # BERT's transform before the output layer: dense, activation, norm; and a bias after it. Also
    # of decoders (GPT-BERT: Charpentier and Samuel, 2024)
    mlm_head: Annotated[bool, OUTPUT] = False
    # Whether tokens are predicted; False: hidden states alone (an imported BertModel)
    lm_head: Annotated[bool, HEADS] = True
    # Heads of your own beside those of the objective, my_module.my_head(option=value): see
    # model/heads.py
    heads: Annotated[tuple[str, ...], CODE, HEADS] = ()

    # What adapts a trained model to a task, its own parameters frozen: see training/adapt.py, which
    # sets these.
    # LoRA: x W + x A B · alpha / rank, in the dense layers named, and of the embedding tables where
    # "embedding" is (Hu et al., 2022)
    lora_rank: Annotated[NonNegative, ADAPTATION] = 0
    lora_alpha: Annotated[float, Range(0.0), OnlyWith("lora_rank")] = 16.0
    lora_targets: Annotated[tuple[str, ...], OnlyWith("lora_rank")] = ("query", "value")
    # Width of the bottleneck after each part of a block (Houlsby et al., 2019)
    adapter_size: Annotated[NonNegative, ADAPTATION] = 0
    # Keys and values of each layer's self-attention that are no token's (Li and Liang, 2021)
    prefix_length: Annotated[NonNegative, ADAPTATION] = 0
    # Embeddings before the text that are no token's (Lester et al., 2021)
    prompt_length: Annotated[NonNegative, ADAPTATION] = 0

    # Of dense kernels: normal, or truncated at 2 σ, with init_stddev; or normal with fan_in^-½ (T5)
    init: Annotated[Literal["normal", "truncated", "fan_in"], COMPUTATION] = "normal"
    init_stddev: Annotated[Stddev, COMPUTATION] = 0.02  # of dense kernels, unless init is fan_in
    embedding_stddev: Annotated[Stddev, COMPUTATION] = 0.02  # of embedding tables
    # Kernels that write to the residual stream: times (2 × num_layers)^-½ (GPT-2)
    depth_scaled_init: Annotated[bool, COMPUTATION] = False
    # T5: attention begins as it often ends. In cross-attention a token attends to itself (Trockman
    # and Kolter, 2023), and two heads of the encoder to the tokens before and after (d'Ascoli et
    # al., 2021): a sentinel finds its place in the text from the first step on
    mimetic_init: Annotated[bool, COMPUTATION] = False

    dropout: Annotated[Dropout, COMPUTATION] = 0.0  # on embeddings and the output of each part
    # On attention weights; no fused kernel has it
    attention_dropout: Annotated[Dropout, COMPUTATION] = 0.0
    ff_dropout: Annotated[Dropout, COMPUTATION] = 0.0  # inside the feed-forward part

    # Auto: the best for the device
    attention_kernel: Annotated[
        Literal["auto", "plain", "cudnn", "splash", "flash"], RESUMABLE, COMPUTATION
    ] = "auto"
    # Of the computation; parameters are float32. float64, of parameters too: for numerical tests
    dtype: Annotated[Literal["float32", "bfloat16", "float64"], COMPUTATION] = "float32"
    # One compiled block for all layers; False unrolls them
    scan: Annotated[bool, RESUMABLE, COMPUTATION] = True
    # Recompute each block in the backward pass
    remat: Annotated[bool, RESUMABLE, COMPUTATION] = False

    @property
    def is_encoder_decoder(self) -> bool:
        """True if there are two stacks."""
        return self.architecture == "encoder_decoder"

    @property
    def has_low_rank_embeddings(self) -> bool:
        """True if LoRA updates the token embeddings, too."""
        return self.lora_rank > 0 and "embedding" in self.lora_targets

    def _contradictions(self) -> Iterator[str]:
        if not self.head_dim and self.d_model % self.num_heads:
            divides = (
                f"model.num_heads: {self.num_heads} does not divide model.d_model {self.d_model}"
            )
            yield f"{divides}; change one, or set model.head_dim"
        if self.has_low_rank_embeddings and self.lm_head and self.tie_embeddings:
            yield (
                "model.lora_targets: embedding is also the output layer (model.tie_embeddings), "
                "which would stay as it is; leave it out"
            )
        yield from self._of_stacks()
        if self.parallel_residual and self.norm_position != "pre":
            yield "model.parallel_residual: needs norm_position pre"
        if not self.first_norm and (self.norm_position != "pre" or self.parallel_residual):
            reason = "is the first of norm_position pre, without parallel_residual"
            yield f"model.first_norm: the norm that it leaves out {reason}; set it to True"
        unknown = [kind for kind in self.layer_pattern if kind not in ("global", "local")]
        if unknown:
            got = ", ".join(map(repr, unknown))
            yield f"model.layer_pattern: got {got}, expected 'global' and 'local'"

    def _of_stacks(self) -> Iterator[str]:
        if not self.is_encoder_decoder:
            one_stack = f"architecture {self.architecture} has one stack"
            if self.num_decoder_layers:
                yield f"model.num_decoder_layers: {one_stack}; leave it out"
            if self.shared_stacks:
                yield f"model.shared_stacks: {one_stack}; leave it out"
            if not self.shared_embeddings:
                yield f"model.shared_embeddings: {one_stack}; leave it out"
            if not self.shared_input_layers:
                yield f"model.shared_input_layers: {one_stack}; leave it out"
            if self.shared_layers in ("encoder", "decoder"):
                yield (
                    f"model.shared_layers: got {self.shared_layers}, but {one_stack}; set all or "
                    "none"
                )
        if self.shared_stacks and self.num_decoder_layers not in (0, self.num_layers):
            yield (
                "model.shared_stacks: needs as many num_decoder_layers as num_layers; set "
                "num_decoder_layers to 0"
            )
        if self.shared_stacks and self.shared_layers in ("encoder", "decoder"):
            yield (
                f"model.shared_layers: got {self.shared_layers}, but shared_stacks makes both "
                "one; set all or none"
            )
        if self.backward_decoder and self.architecture != "decoder":
            yield (
                f"model.backward_decoder: got architecture {self.architecture}, expected decoder; "
                "set it to False"
            )
        if self.backward_decoder and self.prompt_length:
            yield "model.prompt_length: backward_decoder reads no prompt; adapt in another way"


@dataclass(frozen=True)
class ModelDimensions(Model):
    """A Model with every size written out: what resolve.py makes of it, and the only one that
    model/ sees.

    No size is 0 for "follows from another". num_decoder_layers is 0 for an encoder alone,
    num_classes without a sequence label head; embedding_size is d_model unless the tables are
    factorised.
    """

    # Further Transformers that an objective trains beside this one: see Traits.model
    companions: "Annotated[tuple[Companion, ...], HEADS]" = ()

    # Devices that share these sizes, and the experts of a mixture: see DeviceDimensions
    tensor_parts: ClassVar[int] = 1
    expert_parts: ClassVar[int] = 1

    def companion(self, name: str) -> "Companion | None":
        """Find a companion by its name, which its parameters lie under."""
        return next((found for found in self.companions if found.name == name), None)

    def _contradictions(self) -> Iterator[str]:
        sizes = (
            "attention_bias",
            "head_dim",
            "num_kv_heads",
            "d_ff",
            "embedding_size",
            "query_width",
            "vocab_size",
            "max_length",
        )
        for name in sizes:
            if not getattr(self, name):
                yield f"model.{name}: is not resolved; make dimensions with resolve.resolve_model"
        if (self.num_decoder_layers > 0) == (self.architecture == "encoder"):
            yield (
                f"model.num_decoder_layers: got {self.num_decoder_layers} for architecture "
                f"{self.architecture}"
            )

    @property
    def embedding_rows(self) -> int:
        """vocab_size rounded up to vocab_multiple, or one device's share of that."""
        rows = -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple
        return rows // self.tensor_parts

    @property
    def is_factorised(self) -> bool:
        """True if embeddings are narrower (or wider) than the residual stream."""
        return self.embedding_size != self.d_model


@dataclass(frozen=True)
class Companion:
    """A Transformer that is trained beside the model of a run, such as ELECTRA's generator.

    Attributes:
        name: which its parameters lie under, those of the run's model beside it.
        shares: names of parameters, such as "embedding", that it does not have where the run's
            model has them, but reads those.
    """

    name: str
    model: ModelDimensions
    shares: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceDimensions(ModelDimensions):
    """The sizes that one device computes with: num_heads, num_kv_heads, d_ff and embedding_rows are
    its share of the model's. parallel.collectives.own_dimensions makes them.
    """

    tensor_parts: Positive = 1  # devices that share the model
    expert_parts: Positive = 1  # devices that share the experts of a mixture


@dataclass(frozen=True)
class Mesh(Checked):
    """Arrangement of the devices."""

    SECTION = "mesh"
    ROLES = (RESUMABLE,)

    # Sizes that follow from the devices, the model and the rows (see training/arrangement.py), in
    # place of those below; auto: the fewest parts of the parameters that fit
    preset: Literal["", "auto", "data", "fsdp", "fsdp_tensor", "long_context"] = ""
    data: Annotated[int, Range(-1)] = -1  # devices that split the batch; -1: all that are left
    fsdp: Positive = 1  # devices that split the batch and the parameters
    expert: Positive = 1  # devices that split the batch, and the experts of a mixture
    # Devices that split the positions of each row (context parallelism), for long rows
    sequence: Positive = 1
    tensor: Positive = 1  # devices that split heads, d_ff and vocabulary
    # In which gradients, and activations over tensor, are summed: bfloat16 sends half the bytes
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"

    def _contradictions(self) -> Iterator[str]:
        if self.data == 0:
            yield "mesh.data: got 0, expected -1 (all that are left) or at least 1"
        sizes = {field.name: field.default for field in dataclasses.fields(self)}
        axes = [name for name, default in sizes.items() if isinstance(default, int)]
        given = [axis for axis in axes if getattr(self, axis) != sizes[axis]]
        if self.preset and given:
            yield (
                f"mesh.{given[0]}: got {getattr(self, given[0])}, but it follows from mesh.preset="
                f"{self.preset}; leave one of them out"
            )


@dataclass(frozen=True)
class Optimizer(Checked):
    """The update rule and its learning rate."""

    SECTION = "optimizer"

    # The update rule: adamw, adafactor, lion, muon, or one of your own, my_module.my_rule: see
    # training/optimizer.py
    name: Annotated[str, CODE] = "adamw"
    learning_rate: Annotated[float, Range(0.0, 100.0), ADJUSTABLE] = 1e-3  # the peak

    # How the learning rate falls after the warm-up: cosine, linear, inverse_square_root, constant,
    # or one of your own, my_module.my_schedule: see training/schedules.py
    schedule: Annotated[str, CODE] = "cosine"
    # What warmup_steps and decay_steps count; tokens: raw tokens read
    schedule_unit: Literal["steps", "tokens"] = "steps"
    # Linear, from initial_lr_ratio × peak to the peak
    warmup_steps: Annotated[NonNegative, SIZE, ADJUSTABLE] = 100
    initial_lr_ratio: Share = 0.0  # 1: held at the peak during the warm-up (T5)
    # Where cosine and linear end, counted from the first step; 0: with the run
    decay_steps: Annotated[NonNegative, SIZE, ADJUSTABLE] = 0
    # Share of the peak that cosine and linear end at
    final_lr_ratio: Annotated[Share, ADJUSTABLE] = 0.0

    # AdamW, and what Muon leaves to it
    # Decay of the mean of the gradient
    beta1: Annotated[float, Range(0.0, 0.9999), ADJUSTABLE] = 0.9
    # Decay of the mean of its square; Lion: of the momentum
    beta2: Annotated[float, Range(0.0, 0.99999), ADJUSTABLE] = 0.999
    epsilon: Annotated[Share, ADJUSTABLE] = 1e-8  # added to the root of that mean
    # AdamW, Lion and Muon: decoupled, of kernels and tables only
    weight_decay: Annotated[float, Range(0.0, 10.0), ADJUSTABLE] = 0.0
    # Largest global norm of the gradient; 0: no clipping
    grad_clip_norm: Annotated[float, Range(0.0), ADJUSTABLE] = 1.0

    # An average of the parameters, which is evaluated and used in their place: ema(decay=0.999),
    # tail(share=0.2), or one of your own, my_module.my_average: see training/averaging.py
    average: Annotated[str, CODE] = ""

    def _contradictions(self) -> Iterator[str]:
        if 0 < self.decay_steps <= self.warmup_steps:
            expected = f"expected more than optimizer.warmup_steps {self.warmup_steps}, or 0"
            yield f"optimizer.decay_steps: got {self.decay_steps}, {expected}"


@dataclass(frozen=True)
class Training(Checked):
    """Length of a run, its intervals, and the loss that it minimises."""

    SECTION = "training"

    # Of the whole run; data.epochs may end it earlier
    steps: Annotated[Positive, RESUMABLE, BUDGET, SIZE] = 1000
    # Write the metrics of every n-th step
    log_every: Annotated[Positive, RESUMABLE, BUDGET, SIZE] = 50
    # Evaluate the whole validation split every n steps; 0: at the end only
    eval_every: Annotated[NonNegative, RESUMABLE, BUDGET, SIZE] = 0
    # Batches of the validation split that evaluations on the way read, the first ones; 0: all. The
    # evaluation after the last step reads the whole split
    eval_steps: Annotated[NonNegative, RESUMABLE] = 0
    # Save every n steps; 0: at the end only
    checkpoint_every: Annotated[NonNegative, RESUMABLE, BUDGET, SIZE] = 0
    # Save every n steps, and keep these besides the newest; 0: none
    keep_every: Annotated[NonNegative, RESUMABLE, SIZE] = 0
    # Save at these amounts, and keep these, too: 4000 (steps), 10M-tokens or 10M-words of text; the
    # nearest step. Words are separated by blanks, as BabyLM counts them
    keep_at: Annotated[tuple[Annotated[str, IsAmount()], ...], RESUMABLE, SIZE] = ()
    # How often a run that diverges may go back to its last healthy checkpoint, and from there skip
    # the batches that it has read since: see training/health.py
    rollback: Annotated[NonNegative, RESUMABLE] = 0
    # Leave out the update of an unhealthy step, and go on
    skip_step: Annotated[bool, RESUMABLE] = False
    # The batch in n parts, gradients summed: same result, less memory
    microbatches: Annotated[Positive, RESUMABLE, SIZE] = 1
    # The same parameters to the last bit on 1, 2, 4 or 8 devices: the batch in 16 parts, one after
    # the other, whose gradients are summed in one fixed order. Over mesh.data alone
    exact: bool = False
    z_loss: Share = 0.0  # coefficient of log²Z (T5: 1e-4)
    # Share of the target that is spread evenly over the vocabulary (Szegedy et al., 2016)
    label_smoothing: Annotated[float, Range(0.0, 0.99)] = 0.0
    # Positions of each row whose logits exist at a time; 0: so many that these take about as much
    # room as the gradient of the head, but at least 128
    loss_chunk: Annotated[NonNegative, RESUMABLE, SIZE] = 0
    # Weight of the language model's loss beside that of a task's head on a decoder (Radford et al.,
    # 2018)
    auxiliary_lm: Share = 0.5
    # End after so many evaluations of a task that brought nothing better; 0: never
    patience: Annotated[NonNegative, RESUMABLE] = 0
    # Seconds without a finished step, or 20 times the median step if that is longer, after which a
    # run of several processes ends with exit code 142 and says which does not move; 0: never
    stuck_after: Annotated[float, Range(0.0), RESUMABLE, SIZE] = 60.0
    # (first, last) step written as a jax.profiler trace to WORKDIR/profile
    profile: Annotated[tuple[Positive, ...], RESUMABLE, SIZE] = ()
    # Where curves go besides metrics.jsonl: tensorboard, wandb, mlflow, or my_module.MyLogger of
    # your own: see training/loggers.py
    loggers: Annotated[tuple[str, ...], CODE, SENDS, RESUMABLE, SIZE] = ("tensorboard",)
    # What of your own is called after steps, records and checkpoints: my_module.MyCallback, see
    # training/callbacks.py
    callbacks: Annotated[tuple[str, ...], CODE, RESUMABLE, SIZE] = ()

    def _contradictions(self) -> Iterator[str]:
        if self.rollback and not (self.checkpoint_every or self.keep_every or self.keep_at):
            reason = "but nothing is saved to go back to; set training.checkpoint_every"
            yield f"training.rollback: got {self.rollback}, {reason}"
        if self.exact and self.microbatches > 1:
            yield "training.exact: is in 16 parts already; set training.microbatches to 1"
        if self.profile and (len(self.profile) != 2 or self.profile[0] > self.profile[1]):
            expected = "expected [first, last] with first <= last"
            yield f"training.profile: got {list(self.profile)}, {expected}"


@dataclass(frozen=True)
class Start(Checked):
    """The place of a run in a sequence of stages, each of which starts from the one before. All is
    zero for a run that is no such stage; config/stages.py fills it in.
    """

    SECTION = "start"
    ROLES = (BUDGET, SIZE)

    step: NonNegative = 0  # steps that were done before; the run counts on from there
    raw_tokens: NonNegative = 0  # tokens of text that were read before
    skip_tokens: NonNegative = 0  # those of this text; rows begin after them
    # How the parameters of init_from become those of another architecture or depth, such as
    # decoder_to_encoder: see training/conversions.py
    convert: str = ""
    # The step after which the optimizer's state began. If it is smaller than `step`, the state is
    # taken from init_from; if it is the same, the state is fresh
    optimizer_step: NonNegative = 0
    # The steps after which the learning rate schedule begins and ends; 0: it ends with the run
    schedule_step: NonNegative = 0
    schedule_end: Annotated[NonNegative, RESUMABLE] = 0

    def _contradictions(self) -> Iterator[str]:
        for name in ("optimizer_step", "schedule_step"):
            if getattr(self, name) > self.step:
                expected = f"expected at most start.step, {self.step}"
                yield f"start.{name}: got {getattr(self, name)}, {expected}"
        if self.schedule_end and self.schedule_end <= self.schedule_step:
            expected = f"expected more than start.schedule_step, {self.schedule_step}, or 0"
            yield f"start.schedule_end: got {self.schedule_end}, {expected}"

    @property
    def takes_optimizer(self) -> bool:
        """True if the optimizer's state is that of init_from."""
        return self.optimizer_step < self.step


@dataclass(frozen=True)
class Task(Checked):
    """A downstream task: its examples, what is predicted of them, and how that is judged.

    A field of an example is a column by its name ("sentence", or "answers.text" within a nested
    one), or a template of several ("{question} {answer}").
    """

    SECTION = "task"

    name: str = ""  # in reports and prompts; empty: the run has no task, it learns its objective
    # What is predicted: classify, regress, choose, generate, chat, extract, label, complete or
    # prefer: see data/tasks/kinds
    kind: Annotated[str, FORMAT] = "classify"

    # Where the examples are: hf:NAME, tfds:NAME, python:module.function, offline:NAME (see
    # data/tasks/offline.py), world:NAME (data/text/worlds.py); or files (.tsv .csv .jsonl .json
    # .parquet .txt, also compressed): one, a directory, or a glob. {split} stands for the split.
    source: Annotated[str, RESUMABLE, PATH] = ""
    # Names of the splits in the source; empty: there is none
    train: str = "train"
    validation: str = "validation"
    test: Annotated[str, RESUMABLE] = ""
    # Share of the training examples that is held out, by a hash of each, where the source has no
    # split for validation
    validation_fraction: Annotated[float, Range(0.0, 0.9)] = 0.1
    # Names of the columns of a tsv or csv file that has no line of them
    columns: tuple[str, ...] = ()
    # A function of data/tasks/preprocess.py that changes each record first
    prepare: Annotated[str, CODE] = ""
    # What to do with a line that has too few or too many cells, or is no JSON: stop, or skip and
    # count it
    bad_lines: Literal["stop", "skip"] = "stop"

    # The fields of an example.
    id: str = ""  # empty: its place in the split, from 0
    text: str = "text"
    text_pair: str = ""  # the second text, where there is one
    # Classify: a name or number of labels; choose: the number of the right answer, or its text;
    # generate, extract: the text, or a list of all that count as right
    label: str = "label"
    labels: Annotated[tuple, FORMAT] = ()  # names of the classes, in the order of their numbers
    first_label: Annotated[int, Range(-1)] = 0  # the number of the first label, or answer
    choices: tuple[str, ...] = ()  # choose: the fields of the answers, or one that holds a list
    # The answers in such a list that a row has room for, each read with the question in the model's
    # whole length; the readings of a longer list are shorter
    most_choices: Annotated[int, Range(2, 100)] = 5
    group: str = ""  # of examples that are scored together, and shown as one

    # In words, for models that read and write text. Empty: "name field: text …", as T5 has it.
    prompt: Annotated[str, FORMAT] = ""
    turn: Annotated[str, FORMAT] = "{role}:\n{content}\n\n"  # chat: how a turn is written
    label_words: Annotated[tuple, FORMAT] = ()  # what is written for each label; empty: its name
    # Every model with a decoder writes its answers in words, so that families can be compared.
    # False: each family in its own way, which is a head for a decoder alone
    in_words: Annotated[bool, FORMAT] = False
    # What a language model that was not trained on the task is asked: a template that the answer
    # follows. Empty: the prompt. And its words for each label.
    question: str = ""
    answer_words: tuple = ()

    answer_start: str = ""  # extract: the field with the place of each answer in the text
    # Extract: a question may have no answer, as in SQuAD 2: its list of answers is empty. There is
    # none if the score of that is larger than the best span's by more than the threshold
    no_answer: Annotated[bool, FORMAT] = False
    null_threshold: Annotated[float, Range(-1e9, 1e9), RESUMABLE] = 0.0
    # Regress, in words: numbers are written to the nearest multiple, 0.2 as T5 has them
    number_step: Annotated[float, Range(0.0, open=True), FORMAT] = 0.2

    # How predictions are judged: names in data/tasks/metrics.py. The first is what checkpoints and
    # settings are chosen by. Empty: those usual for the kind
    metrics: Annotated[tuple[str, ...], CODE] = ()
    # The file that the benchmark wants of the test split, such as RTE.tsv; whether it has the names
    # of the labels, or their numbers
    submission: Annotated[str, RESUMABLE] = ""
    submission_names: Annotated[bool, RESUMABLE] = False

    def _contradictions(self) -> Iterator[str]:
        if not self.name:
            return
        if not self.source:
            yield f"task.source: task {self.name} has none; say where its examples are"
        for name in ("label_words", "answer_words"):
            words = getattr(self, name)
            if words and self.labels and len(words) != len(self.labels):
                yield f"task.{name}: got {len(words)}, expected one for each of task.labels"


@dataclass(frozen=True)
class RunConfig(Checked):
    """Everything that one run depends on."""

    seed: Seed = 0  # of parameters, order, masks and dropout
    # The directory of a run whose parameters this one starts from; empty: drawn at random
    init_from: Annotated[str, RESUMABLE, PATH] = ""
    start: Start = Start()  # what it goes on with, as a stage after another run
    # Stages, one after the other, each with settings that differ from those here, and `until`: the
    # step where it ends, or a share of training.steps as "80%"; none: the run is one. See
    # config/stages.py
    stages: tuple[Any, ...] = ()
    # Inputs and targets, such as span_corruption(mean_span_length=2)
    objective: Annotated[str, CODE] = "causal_lm"
    task: Task = Task()  # learned instead of the objective, where it has a name
    # Which parameters are trained, those of init_from or new ones: full, lora(rank=8, alpha=16),
    # prefix(20), prompt(20), adapter(64), bitfit, probe, or last(2)
    adapt: Annotated[str, CODE] = "full"
    data: Data = Data()
    model: Model = Model()
    mesh: Mesh = Mesh()
    optimizer: Optimizer = Optimizer()
    training: Training = Training()

    def _contradictions(self) -> Iterator[str]:
        for number, stage in enumerate(self.stages):
            if not isinstance(stage, dict) or not all(isinstance(name, str) for name in stage):
                expected = 'expected settings, such as {"until": "80%", "objective": "causal_lm"}'
                yield f"stages[{number}]: got {stage!r}, {expected}"
        yield from self._of_lengths()
        yield from self._of_start()
        parts, rows = self.training.microbatches, self.data.batch_size
        if rows % parts:
            yield f"training.microbatches: {parts} does not divide data.batch_size {rows}"

    def _of_start(self) -> Iterator[str]:
        start = self.start
        if start == Start():
            return
        if (start.step or start.convert) and not self.init_from:
            yield "start: a stage goes on from another run; set init_from to its directory"
        if self.task.name:
            yield f"start: stages learn objectives, not task {self.task.name}; leave it out"
        if start.step >= self.training.steps:
            reason = f"{start.step} are done before it; set more, since steps count on"
            yield f"training.steps: got {self.training.steps}, but {reason}"

    def _of_lengths(self) -> Iterator[str]:
        architecture, lengths = self.model.architecture, self.data.lengths
        used, unused = ("sequence_length",), ("inputs", "targets")
        if self.model.is_encoder_decoder:
            used, unused = unused, used
        for name in used:
            if not getattr(lengths, name):
                yield f"data.lengths.{name}: got 0; a row of architecture {architecture} needs it"
        for name in unused:
            if getattr(lengths, name):
                expected = f"set data.lengths.{' and '.join(used)}"
                yield (
                    f"data.lengths.{name}: architecture {architecture} has no such length; "
                    f"{expected}"
                )


# What a comparison's directory holds beside its cells
LOGS, TUNING, TRUNKS = "logs", "tuning", "trunks"


@dataclass(frozen=True)
class CompareConfig(Checked):
    """Several runs under one budget, read by `compare`: each cell is trained with each seed.

    A config file has `base`, the settings of all cells, and for each cell what it has otherwise;
    files.py makes a RunConfig of each.
    """

    title: str = "Comparison"  # of the report
    cells: dict = dataclasses.field(default_factory=dict)  # name → RunConfig
    baseline: str = ""  # the cell that the others are compared with; empty: the first

    # How many seeds each cell is trained with, from its own on
    seeds: Annotated[int, Range(1, 1000)] = 1
    # Add seeds one by one, up to this many, until every difference to the baseline is decided in
    # the score `decide_by` (empty: the first of the report that cells have in common); 0: no more
    # than `seeds`. The report may then be looked at after each, since its p-values count all looks
    max_seeds: Annotated[int, Range(0, 1000)] = 0
    decide_by: str = ""
    # Largest share of tables, of differences or of effects, with a false verdict
    alpha: Annotated[float, Range(0.0, 0.5, open=True)] = 0.05
    # The smallest difference that matters, in units of `decide_by`: cells that differ by less
    # beyond doubt are called equivalent; 0: none is
    effect: Annotated[float, Range(0.0)] = 0.0
    # What all cells spend alike; the steps of each follow. Raw tokens: of the text. Model tokens:
    # positions of encoder and decoder. FLOPs: of matrix products, forward and backward. Seconds: of
    # training on this machine, measured once
    match: Literal["steps", "raw_tokens", "model_tokens", "flops", "seconds"] = "raw_tokens"
    # How much; 0: what the first cell spends in its training.steps
    budget: Annotated[float, Range(0.0)] = 0.0
    # Or several: each cell is trained under each, and the report fits scaling laws to the sizes of
    # each objective
    budgets: tuple[Annotated[float, Range(0.0, open=True)], ...] = ()
    # Rows of all cells read equally many raw tokens: as many as fit the rows of every cell
    equal_windows: bool = True
    evaluations: Positive = 4  # of each run, at equal distances
    # Keep a checkpoint at each evaluation, and ask it for the spans and for the tasks that nothing
    # is learned for, so that the report shows how these scores have grown
    score_curves: bool = False

    # Settings with the values that each cell tries before its seeds are trained, all combinations
    # of them, as {"optimizer": {"learning_rate": (1e-3, 3e-3)}}. It keeps those with the lowest
    # loss on the end of the training text, which a try does not read
    tune: dict = dataclasses.field(default_factory=dict)
    # What a try spends, as a share of what the cell spends
    tune_budget: Annotated[float, Range(0.0, 1.0)] = 1.0
    tune_seed: Seed = 2**31 - 1  # of the tries; never one that is reported
    # The same for tasks: settings of the fine-tuning with several values each, as
    # "optimizer.learning_rate=1e-4,3e-4", from which every run chooses by its validation examples
    tune_finetune: Annotated[tuple[str, ...], SETTINGS] = ()

    # Held-out spans, of one word or several, whose bits per byte all models are asked for; 0: none
    span_count: NonNegative = 1024
    span_context: Annotated[int, Range(2, 4096)] = 48  # words around a span, on both sides together
    # Raw tokens that each model then reads as a prefix language model, with its own optimizer, so
    # that all can be asked in one way for a span, given the text before it; 0: none
    adapt_tokens: NonNegative = 0
    # Whether each model is evaluated under the objectives of the other cells, too, where its
    # architecture can learn them
    other_objectives: bool = True
    # Tasks, as `finetune --task` has them, that every model is fine-tuned for; those that nothing
    # is learned for (BLiMP, LAMBADA) it is asked as it is
    tasks: tuple[str, ...] = ()
    # Settings of the fine-tuning, as "data.epochs=2"
    finetune: Annotated[tuple[str, ...], SETTINGS] = ()
    from_scratch: bool = False  # fine-tune each model with fresh parameters, too
    # Beside the models: a unigram and a Kneser-Ney trigram model of the same tokens
    ngram: bool = True
    # Where the question is from: keys of report/papers.py, or BibTeX entries
    papers: tuple[str, ...] = ()
    # Texts in which the report shows what each model fills in: one word for a ___ by masked
    # language models, any number of words by models of span_corruption, and the end of a prompt by
    # language models
    blanks: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "tune", _with_tuples(self.tune))

    def _contradictions(self) -> Iterator[str]:
        if not self.cells:
            yield "cells: got none, expected names with the settings of a run each"
        if self.baseline and self.baseline not in self.cells:
            known = ", ".join(map(str, self.cells))
            yield f"baseline: got {self.baseline!r}, expected one of the cells {known}"
        for name, cell in self.cells.items():
            taken = (LOGS, TUNING, TRUNKS)
            if not isinstance(name, str) or not _is_file_name(name) or name in taken:
                yield (
                    f"cells: got the name {name!r}, expected that of a directory, of at most 200 "
                    f"bytes, and not {', '.join(taken)}"
                )
            if not isinstance(cell, RunConfig):
                yield f"cells.{name}: got {cell!r}, expected a RunConfig"
        if self.adapt_tokens and not self.span_count:
            yield "span_count: got 0, but adapt_tokens asks for spans; set one of them"
        if self.max_seeds and self.max_seeds < self.seeds:
            yield f"max_seeds: got {self.max_seeds}, expected at least seeds, {self.seeds}"
        if self.max_seeds and self.seeds < 2:
            yield "seeds: got 1, but a verdict needs two at least; set seeds=3 to begin with"
        if self.budget and self.budgets:
            yield "budgets: got budget, too; set one of them"
        if len(set(self.budgets)) < len(self.budgets):
            yield f"budgets: got {self.budgets}, expected each once"
        yield from self._of_tuning()

    def _of_tuning(self) -> Iterator[str]:
        if not self.tune_budget:
            yield "tune_budget: got 0, expected a share of the budget, at most 1"
        reported = max(self.seeds, self.max_seeds)
        seeds = {cell.seed for cell in self.cells.values() if isinstance(cell, RunConfig)}
        if self.tune and any(seed <= self.tune_seed < seed + reported for seed in seeds):
            yield f"tune_seed: got {self.tune_seed}, which is reported, too; name another"


def _with_tuples(value: Any) -> Any:
    """Return nested dicts with tuples in place of lists, which is what JSON makes of tuples."""
    if isinstance(value, dict):
        return {key: _with_tuples(inner) for key, inner in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _is_file_name(name: str) -> bool:
    """True if a directory can have this name."""
    return name.isprintable() and Path(name).name == name != ".." and 0 < len(name.encode()) <= 200


def variant(table: Mapping[str, Item], name: str) -> Item:
    """Return what a table of a config file has for the argument of --config=FILE:ARGUMENT.

    >>> variant({"tiny": 2, "base": 12}, "base")
    12

    Raises:
        UserError: if it has nothing of this name.
    """
    if name not in table:
        raise UserError(BAD_CONFIG, f"no such variant; {nearest(name, table)}")
    return table[name]


def to_dict(config: Any) -> dict:
    """The data of a config and nothing else, as in config.json."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def default(schema: type = RunConfig) -> Any:
    """Return all defaults as a locked ConfigDict, for a config file to start from: a
    typo fails there, at its line.

    >>> config = default()
    >>> config.model.num_layers = 2
    >>> config.model.num_layer = 2  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AttributeError: 'Key "num_layer" does not exist and cannot be added since the config is...
    """
    from ml_collections import ConfigDict

    values = {"base": default()} if schema is CompareConfig else {}
    for field in dataclasses.fields(schema):
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            value = field.default
        values[field.name] = default(type(value)) if dataclasses.is_dataclass(value) else value
    return ConfigDict(values).lock()
