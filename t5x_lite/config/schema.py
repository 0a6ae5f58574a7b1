"""The schema: every setting with its default, its range and its meaning, and which settings
contradict each other.

The dataclasses check themselves whenever they are built. Config files start from `default()`, the
same settings as a locked ConfigDict, which files.py turns into these dataclasses.
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
    RATE,
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
    """A dataclass whose fields are checked on construction: first types, ranges and choices, then
    contradictions between settings.
    """

    SECTION = ""  # its place in a RunConfig, for error messages
    ROLES: ClassVar[tuple[Role, ...]] = ()  # roles of all its settings

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
    """Number of positions of a row, by the stack that reads them; 0: the architecture has no such
    stack.
    """

    SECTION = "data.lengths"
    ROLES = (SIZE,)

    # Positions of the only stack of an encoder, decoder or prefix_decoder
    sequence_length: SequenceLength = 0
    inputs: SequenceLength = 0  # positions of the encoder of an encoder_decoder
    targets: SequenceLength = 0  # positions of the decoder of an encoder_decoder


@dataclass(frozen=True)
class TextCleaning(Checked):
    """The policy for each kind of unclean text: replace the problem, keep it, skip the document,
    or stop.

    The store's manifest counts each case, and `inspect` shows the counts.
    """

    SECTION = "data.text_cleaning"

    # Bytes that are not UTF-8; replaced by U+FFFD
    invalid_utf8: Literal["replace", "skip", "stop"] = "replace"
    # Half of a UTF-16 surrogate pair, which JSON may contain; replaced by U+FFFD
    lone_surrogate: Literal["replace", "skip", "stop"] = "replace"
    # Byte order mark at the start of a document; replaced by nothing
    byte_order_mark: Literal["replace", "keep", "skip", "stop"] = "replace"
    nul: Literal["keep", "replace", "skip", "stop"] = "keep"  # zero bytes; replaced by U+FFFD
    # CR LF, or a single CR; replaced by LF
    carriage_return: Literal["keep", "replace", "skip", "stop"] = "keep"
    # Documents that are empty or contain only white space
    empty: Literal["skip", "stop"] = "skip"
    single_token: Literal["keep", "skip", "stop"] = "keep"  # documents of one token


@dataclass(frozen=True)
class Data(Checked):
    """Text, its tokens, and how rows are cut from them."""

    SECTION = "data"

    # Text to train on: python_docs (built in); a path, directory, glob or gs://… of .txt, .jsonl,
    # .parquet, .csv or .tsv, also compressed; tfds:NAME; hf:NAME; python:module.function;
    # world:NAME (see data/text/sources.py). Several sources: "a + b", or with rates "3 * a + b".
    source: Annotated[str, LOCAL, SOURCES] = "python_docs"
    # What counts as one document in a text file; a block ends at a blank line
    document: Literal["file", "line", "block"] = "file"
    field: str = "text"  # column with the text, in JSON lines, parquet and data sets
    text_cleaning: TextCleaning = TextCleaning()  # what to do about unclean text
    # Temperature of mixing: several sources without rates are mixed in proportion to
    # min(tokens, cap)^(1/temperature) (Raffel et al., 2020, §3.5.2). Higher: more evenly
    temperature: Annotated[float, Range(1.0)] = 1.0
    cap: NonNegative = 0  # most tokens that a source counts for in mixing; 0: no limit
    # Source of held-out text; empty: hold out a share of each training source
    validation_source: Annotated[str, LOCAL, SOURCES] = ""
    # Share of documents to hold out, chosen by a hash of their text
    validation_fraction: Annotated[float, Range(0.0, 0.9)] = 0.05

    # A tokenizer to train on the source: sentencepiece (model_type bpe or unigram) or
    # byte_level_bpe; bytes; or an existing file: a .model, tokenizer.json, vocab.txt (BERT) or
    # vocab.bpe
    tokenizer: Annotated[str, LOCAL, TOKENIZER] = "sentencepiece(vocab_size=8192)"
    # Append the special ids and sentinels that an existing tokenizer lacks
    add_specials: bool = False
    # Directory of the tokens; empty: in the cache, named by a hash of what they were made from
    store: Annotated[str, LOCAL, PATH] = ""
    # Number of processes that tokenize a large text; 0: one per core
    processes: Annotated[int, Range(0, 256), LOCAL] = 0

    batch_size: Positive = 32  # rows per step, over all devices
    # Most examples of a task that share a row; 0: as many as fit
    examples_per_row: NonNegative = 0
    lengths: Lengths = Lengths()  # positions of a row, by stack
    # Train only on the first n tokens of the text, repeatedly; 0: on all of it
    unique_tokens: NonNegative = 0
    # End the run when any text has been read this many times; 0: only after training.steps
    epochs: Annotated[NonNegative, RESUMABLE, BUDGET] = 0
    # Most raw tokens that a row reads; 0: as many as fit. The rest of a longer row is padding
    window: NonNegative = 0
    # Number of successive tokens that shuffling keeps together; 0: the longest window of the
    # objectives. Runs with the same block and seed read the same text in the same order. If windows
    # can cross into another block, an EOS replaces the last token of each block
    block: NonNegative = 0
    # Cut the window at document ends first, so that each piece is a segment of its own. Text that
    # then does not fit the row is dropped (`inspect` shows how much)
    split_documents: bool = False
    # Threads that make batches ahead of time; 0: each batch is made when it is needed
    workers: Annotated[int, Range(0, 64), LOCAL] = 1

    def _contradictions(self) -> Iterator[str]:
        if not self.validation_source and not self.validation_fraction:
            yield (
                "data.validation_fraction: got 0; hold a share out, or name data.validation_source"
            )
        trained_on = [source for _, source in parse_sources(self.source, "data.source")]
        parse_sources(self.validation_source, "data.validation_source")  # raises if it is wrong
        if self.validation_source and self.validation_source in trained_on:
            yield (
                f"data.validation_source={self.validation_source}: it is trained on too; name "
                "another"
            )


@dataclass(frozen=True)
class Model(Checked):
    """One Transformer; BERT, T5 and GPT are settings of it."""

    SECTION = "model"

    architecture: Architecture = "decoder"  # the stacks of the model and their attention masks
    num_layers: Annotated[Positive, SIZE] = 4  # number of blocks in each stack
    # Number of blocks in the decoder of an encoder_decoder; 0: num_layers
    num_decoder_layers: Annotated[NonNegative, SIZE] = 0
    d_model: Annotated[Positive, SIZE] = 128  # width of the residual stream

    # Part that mixes positions in a block: attention, lstm(cells=0), or your own my_module.MyMixer.
    # All parts are given as `name` or `name(option=value)`: see model/parts/table.py
    mixer: Annotated[str, CODE] = "attention"
    num_heads: Annotated[Positive, SIZE] = 4  # number of query heads in attention
    head_dim: Annotated[NonNegative, SIZE] = 0  # width of a head; 0: d_model / num_heads
    # Number of heads for keys and values, each of which serves a group of query heads; 1:
    # multi-query; 0: num_heads
    num_kv_heads: Annotated[NonNegative, SIZE] = 0
    # Add a second decoder that reads each text from its end and predicts what comes before. The two
    # are a bidirectional language model (ELMo: Peters et al., 2018, §3.1)
    backward_decoder: bool = False

    # Feed-forward part. mlp: act(x U) V; gated_mlp: (act(x U) * x W) V (Shazeer, 2020);
    # experts(num=8, top_k=2, …): a mixture of these, see model/parts/experts.py; none: no such part
    feed_forward: Annotated[str, CODE] = "mlp"
    d_ff: Annotated[NonNegative, SIZE] = 0  # inner width of the feed-forward part; 0: 4 × d_model
    # Activation of the feed-forward part and of BERT's mlm_head: see model/parts/activations.py
    activation: Annotated[str, CODE] = "gelu"

    # Run the parts of a block in parallel: x + attention(norm(x)) + feed_forward(norm(x))
    parallel_residual: bool = False
    # One norm for all parts (PaLM); False: one for each (GPT-NeoX)
    shared_norm: Annotated[bool, OnlyWith("parallel_residual")] = True
    # Kind of norm: layer_norm (Ba et al., 2016), rms_norm (Zhang and Sennrich, 2019), none
    norm: Annotated[str, CODE] = "layer_norm"
    # Position of the norms. pre: before each part (GPT-2, T5); post: after its residual sum (BERT);
    # output: on its output (OLMo 2); both: before it and on its output (Gemma 2)
    norm_position: Literal["pre", "post", "output", "both"] = "pre"
    # Norm before the mixer in the first layer; False: it reads the embeddings without a norm
    # (ModernBERT)
    first_norm: bool = True
    norm_epsilon: Annotated[float, Range(0.0, 0.1)] = 1e-6  # added to the variance
    embedding_norm: bool = False  # normalise the sum of the embeddings (BERT)
    # Multiply each part by a learned number that starts at 0 (Bachlechner et al., 2020)
    rezero: bool = False
    bias: bool = True  # biases in dense layers and LayerNorm
    # Biases in attention; empty: as `bias`; qkv: only of queries, keys and values (Qwen2)
    attention_bias: Literal["", "none", "qkv", "all"] = ""
    # Normalise queries and keys. head: each head by itself (Henry et al., 2020; Qwen3); all: the
    # features of all heads together (OLMo 2)
    qk_norm: Literal["none", "head", "all"] = "none"

    # Kind of positions: learned(offset=0), sinusoidal, relative(buckets=32, distance=128) (T5),
    # rotary(base=10000, fraction=1.0, scaling="none"), alibi, shaw(distance=16), transformer_xl,
    # universal, none: see model/parts/positions.py
    positions: Annotated[str, CODE] = "learned"
    # Number of learned positions, and length of the longest piece that `score` reads at a time; 0:
    # the length of the longest stack of a row
    max_length: NonNegative = 0

    # Rules of self-attention in addition to those of the architecture, all of which must hold:
    # window(size=128), or your own my_module.MyRule(option=value), see model/masks.py
    attention_rules: Annotated[tuple[str, ...], CODE] = ()
    # Kinds of layers, repeated through each stack, such as ("local", "global"). Local layers have
    # local_rules and local_positions instead of attention_rules and positions (Gemma, ModernBERT)
    layer_pattern: tuple[str, ...] = ()
    # The attention_rules of local layers
    local_rules: Annotated[tuple[str, ...], CODE, OnlyWith("layer_pattern")] = ()
    # Positions of local layers, rotary(…) or none; empty: as `positions`. If this is set,
    # `positions` must also be rotary(…) or none
    local_positions: Annotated[str, CODE, OnlyWith("layer_pattern")] = ""

    # Stacks whose layers all share their parameters (ALBERT)
    shared_layers: Literal["none", "all", "encoder", "decoder"] = "none"
    # Encoder and decoder share their parameters, except those of cross-attention
    shared_stacks: bool = False

    # Width of the embedding tables; 0: d_model. If it is not d_model, embeddings are projected to
    # d_model (ALBERT)
    embedding_size: NonNegative = 0
    # Multiply embeddings by the root of their width (Vaswani et al., 2017, §3.4)
    scale_embeddings: bool = False
    token_types: NonNegative = 0  # rows of the token type table (BERT: 2); 0: no table
    # Number of classes of the sequence label head; 0: as many as the task has, 2 for sentence
    # pairs, else no such head
    num_classes: Annotated[NonNegative, HEADS] = 0
    # Number of classes of the head that reads each position: 2 for the first and the last position
    # of an answer (SQuAD), or one for each label of a word (named entities); 0: no such head. Set
    # by the task
    token_classes: Annotated[NonNegative, HEADS] = 0
    vocab_size: NonNegative = 0  # number of token ids; 0: the tokenizer's
    # Pad the embedding rows to a multiple of this and of mesh.tensor, which splits them
    vocab_multiple: Annotated[Positive, RESUMABLE, COMPUTATION] = 128
    shared_embeddings: bool = True  # encoder and decoder read the same token table
    # Encoder and decoder share the table of learned positions and embedding_norm; False: each has
    # its own (BART)
    shared_input_layers: bool = True
    # Use the (decoder's) embedding table as the output layer
    tie_embeddings: Annotated[bool, OUTPUT] = True
    # Multiply hidden states by d_model^-½ before the output layer (T5 1.0)
    scale_logits: Annotated[bool, OUTPUT] = False
    # Multiply attention logits by query_width^-½; T5's initialisation contains this factor instead
    scale_attention: bool = True
    query_width: NonNegative = 0  # width in the factor of scale_attention; 0: head_dim
    # Soft cap of attention logits: cap · tanh(logits / cap) (Bello et al., 2017; Gemma 2); 0: none
    attention_softcap: Annotated[float, Range(0.0)] = 0.0
    # Soft cap of the logits of the vocabulary, as in attention_softcap; 0: none
    logits_softcap: Annotated[float, Range(0.0), OUTPUT] = 0.0
    # BERT's transform before the output layer (dense, activation, norm), and a bias after it. Also
    # for decoders (GPT-BERT: Charpentier and Samuel, 2024)
    mlm_head: Annotated[bool, OUTPUT] = False
    # Predict tokens; False: compute only hidden states (an imported BertModel)
    lm_head: Annotated[bool, HEADS] = True
    # Heads of your own in addition to those of the objective, my_module.my_head(option=value): see
    # model/heads.py
    heads: Annotated[tuple[str, ...], CODE, HEADS] = ()

    # The next six settings adapt a trained model to a task while its own parameters are frozen.
    # training/adapt.py sets them.

    # Rank of LoRA, x W + x A B · alpha / rank (Hu et al., 2022); 0: no LoRA
    lora_rank: Annotated[NonNegative, ADAPTATION] = 0
    # Factor alpha of LoRA, which is divided by its rank
    lora_alpha: Annotated[float, Range(0.0), OnlyWith("lora_rank")] = 16.0
    # Names of the dense layers that LoRA adapts; "embedding" stands for the embedding tables
    lora_targets: Annotated[tuple[str, ...], OnlyWith("lora_rank")] = ("query", "value")
    # Width of the bottleneck after each part of a block (Houlsby et al., 2019); 0: none
    adapter_size: Annotated[NonNegative, ADAPTATION] = 0
    # Number of learned keys and values before those of the tokens, in each layer's self-attention
    # (Li and Liang, 2021); 0: none
    prefix_length: Annotated[NonNegative, ADAPTATION] = 0
    # Number of learned embeddings before the text (Lester et al., 2021); 0: none
    prompt_length: Annotated[NonNegative, ADAPTATION] = 0

    # Distribution of dense kernels: normal, or truncated at 2 σ, with init_stddev; fan_in: normal
    # with fan_in^-½ (T5)
    init: Annotated[Literal["normal", "truncated", "fan_in"], COMPUTATION] = "normal"
    # Standard deviation of dense kernels, unless init is fan_in
    init_stddev: Annotated[Stddev, COMPUTATION] = 0.02
    # Standard deviation of embedding tables
    embedding_stddev: Annotated[Stddev, COMPUTATION] = 0.02
    # Multiply the standard deviation of kernels that write to the residual stream by
    # (2 × num_layers)^-½ (GPT-2)
    depth_scaled_init: Annotated[bool, COMPUTATION] = False
    # For T5: start attention where it often ends up. In cross-attention a token attends to itself
    # (Trockman and Kolter, 2023), and two heads of the encoder attend to the previous and the next
    # token (d'Ascoli et al., 2021). A sentinel then finds its place in the text from the first step
    # on
    mimetic_init: Annotated[bool, COMPUTATION] = False

    # Dropout on embeddings and on the output of each part
    dropout: Annotated[Dropout, COMPUTATION] = 0.0
    # Dropout on attention weights, which no fused kernel supports
    attention_dropout: Annotated[Dropout, COMPUTATION] = 0.0
    # Dropout inside the feed-forward part
    ff_dropout: Annotated[Dropout, COMPUTATION] = 0.0

    # Kernel that computes attention; auto: the best one for the device. Decoding always uses plain
    attention_kernel: Annotated[
        Literal["auto", "plain", "cudnn", "splash", "flash"], RESUMABLE, COMPUTATION
    ] = "auto"
    # Compute dtype. Parameters are float32, except with float64, which is for numerical tests
    dtype: Annotated[Literal["float32", "bfloat16", "float64"], COMPUTATION] = "float32"
    # Compile one block for all layers; False: unroll the layers
    scan: Annotated[bool, RESUMABLE, COMPUTATION] = True
    # Recompute each block in the backward pass
    remat: Annotated[bool, RESUMABLE, COMPUTATION] = False

    @property
    def is_encoder_decoder(self) -> bool:
        """True if there are two stacks."""
        return self.architecture == "encoder_decoder"

    @property
    def has_low_rank_embeddings(self) -> bool:
        """True if LoRA also updates the token embeddings."""
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
    """A Model with every size filled in. resolve.py makes it, and model/ sees only this.

    No size is 0 to mean that it follows from another. num_decoder_layers is 0 only for an encoder,
    and num_classes only without a sequence label head. embedding_size is d_model unless the tables
    are factorised.
    """

    # Further Transformers that an objective trains beside this one: see Traits.model
    companions: "Annotated[tuple[Companion, ...], HEADS]" = ()

    tensor_parts: ClassVar[int] = 1  # devices that share these sizes: see DeviceDimensions
    expert_parts: ClassVar[int] = 1  # devices that share the experts: see DeviceDimensions

    def companion(self, name: str) -> "Companion | None":
        """Find a companion by its name, under which its parameters are stored."""
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
        """vocab_size rounded up to a multiple of vocab_multiple, or one device's share of it."""
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
        name: name under which its parameters are stored, beside those of the run's model.
        shares: names of parameters, such as "embedding", that it reads from the run's model, if
            that has them, instead of having its own.
    """

    name: str
    model: ModelDimensions
    shares: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceDimensions(ModelDimensions):
    """The sizes that one device computes with: num_heads, num_kv_heads, d_ff and embedding_rows are
    its share of the model's. parallel.collectives.own_dimensions makes them.
    """

    # pyrefly: ignore[bad-override]
    tensor_parts: Positive = 1  # devices that share the model
    # pyrefly: ignore[bad-override]
    expert_parts: Positive = 1  # devices that share the experts of a mixture


@dataclass(frozen=True)
class Mesh(Checked):
    """Arrangement of the devices."""

    SECTION = "mesh"
    ROLES = (RESUMABLE,)

    # Choose the sizes below from the devices, the model and the rows (see parallel/presets.py).
    # auto: split the parameters into the fewest parts that fit
    preset: Literal["", "auto", "data", "fsdp", "fsdp_tensor", "long_context"] = ""
    data: Annotated[int, Range(-1)] = -1  # devices that split the batch; -1: all remaining ones
    fsdp: Positive = 1  # devices that split the batch and the parameters
    expert: Positive = 1  # devices that split the batch and the experts of a mixture
    # Devices that split the positions of each row (context parallelism), for long rows
    sequence: Positive = 1
    tensor: Positive = 1  # devices that split the heads, d_ff and the vocabulary
    # Dtype in which gradients, and activations over tensor, are summed; bfloat16 sends half the
    # bytes
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

    # Update rule: adamw, adafactor, lion, muon, or your own my_module.my_rule: see
    # training/optimizer.py
    name: Annotated[str, CODE] = "adamw"
    learning_rate: Annotated[float, Range(0.0, 100.0), ADJUSTABLE, RATE] = (
        1e-3  # peak learning rate
    )

    # Learning rate after the warm-up: cosine, linear, inverse_square_root, constant, or your own
    # my_module.my_schedule: see training/schedules.py
    schedule: Annotated[str, CODE, RATE] = "cosine"
    # Unit of warmup_steps and decay_steps; tokens: raw tokens read
    schedule_unit: Annotated[Literal["steps", "tokens"], RATE] = "steps"
    # Length of the linear warm-up from initial_lr_ratio × peak to the peak
    warmup_steps: Annotated[NonNegative, SIZE, ADJUSTABLE, RATE] = 100
    # Start of the warm-up as a share of the peak; 1: at the peak during the warm-up (T5)
    initial_lr_ratio: Annotated[Share, RATE] = 0.0
    # End of cosine and linear, counted from the first step; 0: the end of the run
    decay_steps: Annotated[NonNegative, SIZE, ADJUSTABLE, RATE] = 0
    # Learning rate at the end of cosine and linear, as a share of the peak
    final_lr_ratio: Annotated[Share, ADJUSTABLE, RATE] = 0.0

    # AdamW uses beta1, beta2 and epsilon, also for the parameters that Muon leaves to AdamW. Lion
    # uses beta1 and beta2, and Adafactor none of them.

    # Decay rate of the mean of the gradient. In Lion, the update is the sign of
    # beta1 × momentum + (1 − beta1) × gradient
    beta1: Annotated[float, Range(0.0, 0.9999), ADJUSTABLE] = 0.9
    # Decay rate of the mean of the squared gradient; in Lion, decay rate of the momentum
    beta2: Annotated[float, Range(0.0, 0.99999), ADJUSTABLE] = 0.999
    epsilon: Annotated[Share, ADJUSTABLE] = 1e-8  # added to the root of the mean squared gradient
    # Decoupled weight decay of AdamW, Lion and Muon, only on kernels and tables
    weight_decay: Annotated[float, Range(0.0, 10.0), ADJUSTABLE] = 0.0
    # Largest global norm of the gradient; 0: no clipping
    grad_clip_norm: Annotated[float, Range(0.0), ADJUSTABLE] = 1.0

    # Average of the parameters, which is evaluated and used instead of them: ema(decay=0.999),
    # tail(share=0.2), or your own my_module.my_average: see training/averaging.py; empty: none
    average: Annotated[str, CODE] = ""

    def _contradictions(self) -> Iterator[str]:
        if 0 < self.decay_steps <= self.warmup_steps:
            expected = f"expected more than optimizer.warmup_steps {self.warmup_steps}, or 0"
            yield f"optimizer.decay_steps: got {self.decay_steps}, {expected}"


@dataclass(frozen=True)
class Training(Checked):
    """Length of a run, its intervals, and the loss that it minimises."""

    SECTION = "training"

    # Number of steps of the whole run; data.epochs may end it earlier
    steps: Annotated[Positive, RESUMABLE, BUDGET, SIZE] = 1000
    # Write the metrics of every n-th step
    log_every: Annotated[Positive, RESUMABLE, BUDGET, SIZE] = 50
    # Evaluate on the validation split every n steps; 0: only at the end
    eval_every: Annotated[NonNegative, RESUMABLE, BUDGET, SIZE] = 0
    # Number of batches, from the start of the validation split, that evaluations during training
    # read; 0: all. The evaluation after the last step reads the whole split
    eval_steps: Annotated[NonNegative, RESUMABLE] = 0
    # Save a checkpoint every n steps; 0: only at the end
    checkpoint_every: Annotated[NonNegative, RESUMABLE, BUDGET, SIZE] = 0
    # Save a checkpoint every n steps, and keep these besides the newest; 0: none
    keep_every: Annotated[NonNegative, RESUMABLE, SIZE] = 0
    # Save checkpoints at these amounts of training, and keep them: 4000 (steps), 10M-tokens or
    # 10M-words of text. The nearest step counts. Words are separated by blanks, as in BabyLM
    keep_at: Annotated[tuple[Annotated[str, IsAmount()], ...], RESUMABLE, SIZE] = ()
    # How many times a run that diverges may go back to its last healthy checkpoint, and from there
    # skip the batches that it has read since: see training/health.py
    rollback: Annotated[NonNegative, RESUMABLE] = 0
    # Leave out the update of an unhealthy step, and continue
    skip_step: Annotated[bool, RESUMABLE] = False
    # Split the batch into n parts and sum their gradients: same result, less memory
    microbatches: Annotated[Positive, RESUMABLE, SIZE] = 1
    # Get the same parameters to the last bit on 1, 2, 4 or 8 devices: the batch is computed in 16
    # parts, one after the other, and their gradients are summed in one fixed order. Works over
    # mesh.data only
    exact: bool = False
    z_loss: Share = 0.0  # coefficient of log²Z in the loss (T5: 1e-4)
    # Share of the target that is spread evenly over the vocabulary (Szegedy et al., 2016)
    label_smoothing: Annotated[float, Range(0.0, 0.99)] = 0.0
    # Positions of each row whose logits exist at a time; 0: as many as need about the memory of the
    # head's gradient, or 128 if that is more
    loss_chunk: Annotated[NonNegative, RESUMABLE, SIZE] = 0
    # Weight of the language model's loss beside the loss of a task's head on a decoder (Radford et
    # al., 2018)
    auxiliary_lm: Share = 0.5
    # End after this many evaluations of a task without improvement; 0: never
    patience: Annotated[NonNegative, RESUMABLE] = 0
    # Seconds without a finished step, or 20 times the median step if that is longer, after which a
    # run of several processes ends with exit code 142 and says which process is stuck; 0: never
    stuck_after: Annotated[float, Range(0.0), RESUMABLE, SIZE] = 60.0
    # First and last step of a jax.profiler trace, which is written to WORKDIR/profile; empty: none
    profile: Annotated[tuple[Positive, ...], RESUMABLE, SIZE] = ()
    # Where curves go besides metrics.jsonl: tensorboard, wandb, mlflow, or your own
    # my_module.MyLogger: see training/loggers.py
    loggers: Annotated[tuple[str, ...], CODE, SENDS, RESUMABLE, SIZE] = ("tensorboard",)
    # Code of your own that is called after steps, records and checkpoints: my_module.MyCallback,
    # see training/callbacks.py
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
    """The place of a run in a sequence of stages, each of which starts from the previous one.
    config/stages.py fills it in. All values are 0 or empty in a run that is not a stage.
    """

    SECTION = "start"
    ROLES = (BUDGET, SIZE)

    step: NonNegative = 0  # number of steps before this stage, from which the count continues
    raw_tokens: NonNegative = 0  # number of raw tokens read before this stage
    # Number of tokens of this stage's text that were read before; rows begin after them
    skip_tokens: NonNegative = 0
    # How to turn the parameters of init_from into those of another architecture or depth, such as
    # decoder_to_encoder: see training/conversions.py; empty: no conversion
    convert: str = ""
    # Step after which the optimizer's state began. If it is smaller than `step`, the state is taken
    # from init_from; if it is the same, the state is fresh
    optimizer_step: NonNegative = 0
    # Step after which the learning rate schedule begins
    schedule_step: NonNegative = 0
    # Step after which the learning rate schedule ends; 0: with the run
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
        """True if the optimizer's state is taken from init_from."""
        return self.optimizer_step < self.step


@dataclass(frozen=True)
class Task(Checked):
    """A downstream task: its examples, what is predicted, and how predictions are judged.

    A field of an example is given by the name of a column ("sentence", or "answers.text" inside a
    nested one), or by a template of several columns ("{question} {answer}").
    """

    SECTION = "task"

    name: str = ""  # name in reports and prompts; empty: no task, the run learns its objective
    # What is predicted: classify, regress, choose, generate, chat, extract, label, complete or
    # prefer: see data/tasks/kinds
    kind: Annotated[str, FORMAT] = "classify"

    # Where the examples are: hf:NAME, tfds:NAME, python:module.function, offline:NAME (see
    # data/tasks/offline.py), world:NAME (data/text/worlds.py); or files (.tsv .csv .jsonl .json
    # .parquet .txt, also compressed): one file, a directory or a glob. {split} stands for the split
    source: Annotated[str, RESUMABLE, PATH] = ""
    train: str = "train"  # name of the training split in the source; empty: there is none
    validation: str = "validation"  # name of the validation split; empty: there is none
    test: Annotated[str, RESUMABLE] = ""  # name of the test split; empty: there is none
    # Share of the training examples to hold out, chosen by a hash of each, if the source has no
    # validation split
    validation_fraction: Annotated[float, Range(0.0, 0.9)] = 0.1
    # Names of the columns of a tsv or csv file without a header line
    columns: tuple[str, ...] = ()
    # Function in data/tasks/preprocess.py, or your own my_module.my_function, that first changes
    # each record; empty: none
    prepare: Annotated[str, CODE] = ""
    # What to do with a line that has too few or too many cells, or is not JSON: stop, or skip and
    # count it
    bad_lines: Literal["stop", "skip"] = "stop"

    # The fields of an example.

    id: str = ""  # field with the id of an example; empty: its place in the split, from 0
    text: str = "text"  # field with the text
    text_pair: str = ""  # field with the second text; empty: there is none
    # Field with the right answer. Classify: the name or number of a label; choose: the number of
    # the answer, or its text; generate, extract: the text, or a list of all that count as right
    label: str = "label"
    labels: Annotated[tuple, FORMAT] = ()  # names of the classes, in the order of their numbers
    first_label: Annotated[int, Range(-1)] = 0  # number of the first label, or of the first answer
    # Fields of the answers, or one field with a list of them (choose)
    choices: tuple[str, ...] = ()
    # Number of answers in such a list that a row is made for (choose). Each is then read with the
    # question at the model's full length; in a longer list, each reading is shorter
    most_choices: Annotated[int, Range(2, 100)] = 5
    # Field with the same value in examples that are scored together, and shown as one
    group: str = ""

    # The task in words, for models that read and write text.

    # Template of the text; empty: "name field: text …", as in T5
    prompt: Annotated[str, FORMAT] = ""
    turn: Annotated[str, FORMAT] = "{role}:\n{content}\n\n"  # template of a turn (chat)
    label_words: Annotated[tuple, FORMAT] = ()  # words written for each label; empty: its name
    # Let every model with a decoder answer in words, so that families can be compared. False: each
    # family answers in its own way, which is a head for models with only a decoder
    in_words: Annotated[bool, FORMAT] = False
    # Template of the question to a language model that was not trained on the task; the answer
    # follows it. Empty: the prompt
    question: str = ""
    answer_words: tuple = ()  # words of such a model for each label; empty: label_words

    answer_start: str = ""  # field with the place of each answer in the text (extract)
    # A question may have no answer, as in SQuAD 2; its list of answers is then empty (extract)
    no_answer: Annotated[bool, FORMAT] = False
    # Predict that there is no answer if the score of that exceeds the best span's by more than this
    null_threshold: Annotated[float, Range(-1e9, 1e9), RESUMABLE] = 0.0
    # Numbers in words are written as the nearest multiple of this, 0.2 in T5 (regress)
    number_step: Annotated[float, Range(0.0, open=True), FORMAT] = 0.2

    # How predictions are judged: names in data/tasks/metrics.py. Checkpoints and settings are
    # chosen by the first. Empty: the usual ones for the kind
    metrics: Annotated[tuple[str, ...], CODE] = ()
    # Name of the file that the benchmark expects for the test split, such as RTE.tsv
    submission: Annotated[str, RESUMABLE] = ""
    # Write the names of the labels to this file; False: their numbers
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

    seed: Seed = 0  # seed of parameters, order of the data, masks and dropout
    # Directory of a run whose parameters this one starts from; empty: they are drawn at random
    init_from: Annotated[str, RESUMABLE, PATH] = ""
    start: Start = Start()  # place of the run in a sequence of stages
    # Stages, one after the other: each has settings that differ from those here, and `until`, the
    # step at which it ends, or a share of training.steps such as "80%". Empty: a run without
    # stages. See config/stages.py
    stages: tuple[Any, ...] = ()
    # Objective, which makes inputs and targets, such as span_corruption(mean_span_length=2)
    objective: Annotated[str, CODE] = "causal_lm"
    task: Task = Task()  # task to learn instead of the objective, if it has a name
    # Parameters that are trained, those of init_from or new ones: full, lora(rank=8, alpha=16),
    # prefix(20), prompt(20), adapter(64), bitfit, probe, or last(2)
    adapt: Annotated[str, CODE] = "full"
    data: Data = Data()  # text, its tokens and the rows
    model: Model = Model()  # the Transformer
    mesh: Mesh = Mesh()  # arrangement of the devices
    optimizer: Optimizer = Optimizer()  # update rule and learning rate
    training: Training = Training()  # length, intervals and loss

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


# Directories of a comparison besides those of its cells.
LOGS, TUNING, TRUNKS = "logs", "tuning", "trunks"


@dataclass(frozen=True)
class CompareConfig(Checked):
    """Several runs under one budget, read by `compare`: each cell is trained with each seed.

    A config file has `base`, the settings of all cells, and for each cell the settings that differ.
    files.py makes a RunConfig of each cell.
    """

    title: str = "Comparison"  # title of the report
    cells: dict = dataclasses.field(default_factory=dict)  # name → RunConfig
    baseline: str = ""  # cell that the others are compared with; empty: the first

    # Number of seeds that each cell is trained with, counted up from its own
    seeds: Annotated[int, Range(1, 1000)] = 1
    # Add seeds one by one, up to this many, until every difference to the baseline in the score
    # `decide_by` is decided; 0: no more than `seeds`. The report may be looked at after each seed,
    # since its p-values count all looks
    max_seeds: Annotated[int, Range(0, 1000)] = 0
    # Score that max_seeds and effect refer to; empty: the first score of the report that all cells
    # have
    decide_by: str = ""
    # Largest share of tables (of differences, or of effects) that contain a false verdict
    alpha: Annotated[float, Range(0.0, 0.5, open=True)] = 0.05
    # Smallest difference that matters, in units of `decide_by`. Cells that differ by less, beyond
    # doubt, are called equivalent; 0: none are
    effect: Annotated[float, Range(0.0)] = 0.0
    # What every cell spends the same amount of; its steps follow. Raw tokens: tokens of the text.
    # Model tokens: positions of encoder and decoder. FLOPs: those of matrix products, forward and
    # backward. Seconds: training time on this machine, measured once
    match: Literal["steps", "raw_tokens", "model_tokens", "flops", "seconds"] = "raw_tokens"
    # Amount of `match` that each cell spends; 0: what the first cell spends in its training.steps
    budget: Annotated[float, Range(0.0)] = 0.0
    # Several budgets instead of one: each cell is trained under each, and the report fits scaling
    # laws to the sizes of each objective
    budgets: tuple[Annotated[float, Range(0.0, open=True)], ...] = ()
    # Rows of all cells read equally many raw tokens: as many as fit the rows of every cell
    equal_windows: bool = True
    evaluations: Positive = 4  # number of evaluations of each run, at equal distances
    # Keep a checkpoint at each evaluation, and ask it for the spans, the tasks without training and
    # the example texts, so that the report shows how scores and writing have changed
    score_curves: bool = False

    # Settings with the values that each cell tries before its seeds are trained, in all
    # combinations, such as {"optimizer": {"learning_rate": (1e-3, 3e-3)}}. The cell keeps the
    # values with the lowest loss on the end of the training text, which the tries do not read
    tune: dict = dataclasses.field(default_factory=dict)
    # Budget of a try, as a share of the cell's budget
    tune_budget: Annotated[float, Range(0.0, 1.0)] = 1.0
    tune_seed: Seed = 2**31 - 1  # seed of the tries, which is never one that is reported
    # Settings of fine-tuning with several values each, such as "optimizer.learning_rate=1e-4,3e-4".
    # For each task, every run chooses among them by its validation examples
    tune_finetune: Annotated[tuple[str, ...], SETTINGS] = ()

    # Number of held-out spans, of one word or several, for which all models are scored in bits per
    # byte; 0: none
    span_count: NonNegative = 1024
    span_context: Annotated[int, Range(2, 4096)] = 48  # words around a span, both sides together
    # Raw tokens that each model then reads as a prefix language model, with its own optimizer.
    # After that, all models can predict a span in the same way, given the text before it; 0: none
    adapt_tokens: NonNegative = 0
    # Also evaluate each model under the objectives of the other cells, if its architecture can
    # learn them
    other_objectives: bool = True
    # Tasks, named as in `finetune --task`, for which every model is fine-tuned. Tasks without
    # training (BLiMP, LAMBADA) are evaluated without fine-tuning
    tasks: tuple[str, ...] = ()
    # Settings of fine-tuning, such as "data.epochs=2"
    finetune: Annotated[tuple[str, ...], SETTINGS] = ()
    from_scratch: bool = False  # also fine-tune each model from fresh parameters
    # Also score a unigram and a Kneser-Ney trigram model of the same tokens
    ngram: bool = True
    # Papers that the question comes from: keys of report/papers.py, or BibTeX entries
    papers: tuple[str, ...] = ()
    # Texts with ___, which the report shows filled by masked language models, with one word each
    blanks: tuple[str, ...] = ()
    # Texts with ___, which the report shows filled by models of span_corruption, with any number of
    # words
    spans: tuple[str, ...] = ()
    # Beginnings of texts, which the report shows continued by language models
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
    """Return the entry of a config file's table for the argument of --config=FILE:ARGUMENT.

    >>> variant({"tiny": 2, "base": 12}, "base")
    12

    Raises:
        UserError: if the table has no entry of this name.
    """
    if name not in table:
        raise UserError(BAD_CONFIG, f"no such variant; {nearest(name, table)}")
    return table[name]


def to_dict(config: Any) -> dict:
    """Return a config as plain data, as in config.json."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def default(schema: type = RunConfig) -> Any:
    """Return all defaults as a locked ConfigDict, from which a config file starts. A typo then
    fails at its line of the file.

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
