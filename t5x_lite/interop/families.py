"""The models of Hugging Face's `transformers` that are settings of ours: BERT, RoBERTa, GPT-2, T5 (1.0 and 1.1), LLaMA.

Each family says, both ways, what its config.json means and where its tensors lie: our modules and theirs, of layer {i}.
A kernel lies transposed there, unless the family says otherwise.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from t5x_lite.config import Model
from t5x_lite.errors import BAD_DATA, Refusal
from t5x_lite.model.layers import head_size

# Their names of activations; of several for one of ours the first is written.
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_ACTIVATIONS |= {"relu": "relu", "silu": "silu", "swish": "silu"}
# Settings of how a model is trained or computed, which say nothing about what it computes.
_HOW = {"init", "init_stddev", "embedding_stddev", "depth_scaled_init", "dtype", "scan", "remat", "attention"}
_HOW |= {"vocab_multiple", "dropout", "attention_dropout", "ff_dropout", "classes"}


@dataclass(frozen=True)
class Family:
    """How the models of one model_type are read and written."""

    architecture: str  # the class of `transformers` that is written
    fields: dict[str, str]  # their setting → ours, of the same meaning
    always: dict  # our settings that all of them have
    modules: dict[str, str]  # our module or parameter → theirs
    defaults: dict = field(default_factory=dict)  # their settings where config.json leaves them out
    only: dict = field(default_factory=dict)  # their settings that are read with one value alone
    ours: Callable[[dict], dict] = lambda config: {}  # our settings that need more than another name …
    theirs: Callable[[Model], dict] = lambda model: {}  # … and theirs
    prefix: str = ""  # of most names; files of the bare model leave it out
    transposed: bool = True  # their kernels lie [out, in]

    def read(self, config: dict) -> dict:
        """Settings of Model for their config.json."""
        for key, value in self.only.items():
            if config.get(key) not in (value, None):
                what = f"config.json: {key}={config[key]!r}: models of this kind are read with {value!r} alone"
                raise Refusal(BAD_DATA, what)
        config = self.defaults | {key: value for key, value in config.items() if value is not None}
        if missing := [key for key in self.fields if key not in config]:
            raise Refusal(BAD_DATA, f"config.json: has no {missing[0]}, expected a model of this kind")
        made = {ours: config[theirs] for theirs, ours in self.fields.items()}
        made |= self.always | self.ours(config)
        if made["activation"] not in _ACTIVATIONS:
            expected = ", ".join(_ACTIVATIONS)
            raise Refusal(BAD_DATA, f"config.json: activation {made['activation']!r}: expected one of {expected}")
        return made | {"activation": _ACTIVATIONS[made["activation"]]}

    def write(self, model: Model) -> dict:
        """Their config.json for a model, whose numbers are written out."""
        model = explicit(model)
        made = {theirs: getattr(model, ours) for theirs, ours in self.fields.items()}
        made |= {theirs: named(model) for theirs, ours in self.fields.items() if ours == "activation"}
        return made | self.theirs(model)


def named(model: Model) -> str:
    """Their name of its activation."""
    return next((theirs for theirs, ours in _ACTIVATIONS.items() if ours == model.activation), model.activation)


def explicit(model: Model) -> Model:
    """The model, sizes that follow from others written out."""
    return dataclasses.replace(
        model,
        head_size=head_size(model),
        kv_heads=model.kv_heads or model.heads,
        ff_width=model.ff_width or 4 * model.width,
        decoder_layers=model.decoder_layers or model.layers * (model.architecture == "encoder_decoder"),
    )


def differences(family: Family, model: Model) -> dict:
    """What of a model the family cannot say: {setting: (the model's, the family's)}. None: it is one of them."""
    if model.activation not in _ACTIVATIONS.values():
        return {"activation": (model.activation, "gelu")}
    said = explicit(Model(**family.read(family.write(model))))
    pairs = {f.name: (getattr(explicit(model), f.name), getattr(said, f.name)) for f in dataclasses.fields(Model)}
    ignored = set(_HOW)
    if model.positions != "learned":
        ignored.add("max_length")
    if "head/output" in family.modules and "tied" not in family.fields.values():  # the file says it by its tensors
        ignored.add("tied")
    return {name: pair for name, pair in pairs.items() if name not in ignored and pair[0] != pair[1]}


def _bert_modules(prefix: str) -> dict:
    layer = f"{prefix}encoder.layer.{{i}}."
    attention = {name: f"attention.self.{name}" for name in ("query", "key", "value")}
    attention["out"] = "attention.output.dense"
    tables = {"embedding": "word", "position_embedding": "position", "type_embedding": "token_type"}
    made = {ours: f"{prefix}embeddings.{theirs}_embeddings.weight" for ours, theirs in tables.items()}
    made |= {f"encoder/layers/attention/{ours}": layer + theirs for ours, theirs in attention.items()}
    return made | {
        "embedding_norm": f"{prefix}embeddings.LayerNorm",
        "encoder/layers/attention_norm": layer + "attention.output.LayerNorm",
        "encoder/layers/feed_forward/wi": layer + "intermediate.dense",
        "encoder/layers/feed_forward/wo": layer + "output.dense",
        "encoder/layers/feed_forward_norm": layer + "output.LayerNorm",
    }


BERT = Family(
    "BertForMaskedLM",
    {
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "intermediate_size": "ff_width",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_epsilon",
        "max_position_embeddings": "max_length",
        "type_vocab_size": "token_types",
        "vocab_size": "vocab_size",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    {"architecture": "encoder", "norm_position": "post", "embedding_norm": True, "mlm_head": True},
    _bert_modules("bert.")
    | {
        "head/dense": "cls.predictions.transform.dense",
        "head/norm": "cls.predictions.transform.LayerNorm",
        "head/bias": "cls.predictions.bias",
        "classifier/pooler": "bert.pooler.dense",
        "classifier/output": "cls.seq_relationship",
    },
    {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    prefix="bert.",
)


def _roberta_ours(config: dict) -> dict:
    offset = config["pad_token_id"] + 1  # positions count from behind the id of padding
    return {"max_length": config["max_position_embeddings"] - offset, "position_offset": offset}


def _roberta_theirs(model: Model) -> dict:
    rows = model.max_length + model.position_offset
    return {"max_position_embeddings": rows, "pad_token_id": model.position_offset - 1}


ROBERTA = dataclasses.replace(
    BERT,
    architecture="RobertaForMaskedLM",
    modules=_bert_modules("roberta.")
    | {"head/dense": "lm_head.dense", "head/norm": "lm_head.layer_norm", "head/bias": "lm_head.bias"},
    defaults={**BERT.defaults, "layer_norm_eps": 1e-5, "pad_token_id": 1},
    ours=_roberta_ours,
    theirs=_roberta_theirs,
    prefix="roberta.",
)

GPT2 = Family(
    "GPT2LMHeadModel",
    {
        "n_layer": "layers",
        "n_embd": "width",
        "n_head": "heads",
        "n_positions": "max_length",
        "activation_function": "activation",
        "layer_norm_epsilon": "norm_epsilon",
        "vocab_size": "vocab_size",
        "tie_word_embeddings": "tied",
        "resid_pdrop": "dropout",
        "embd_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
    },
    {"architecture": "decoder"},
    {
        "embedding": "transformer.wte.weight",
        "position_embedding": "transformer.wpe.weight",
        "decoder/layers/attention_norm": "transformer.h.{i}.ln_1",
        "decoder/layers/attention/query": "transformer.h.{i}.attn.c_attn[0/3]",  # a third of one tensor
        "decoder/layers/attention/key": "transformer.h.{i}.attn.c_attn[1/3]",
        "decoder/layers/attention/value": "transformer.h.{i}.attn.c_attn[2/3]",
        "decoder/layers/attention/out": "transformer.h.{i}.attn.c_proj",
        "decoder/layers/feed_forward_norm": "transformer.h.{i}.ln_2",
        "decoder/layers/feed_forward/wi": "transformer.h.{i}.mlp.c_fc",
        "decoder/layers/feed_forward/wo": "transformer.h.{i}.mlp.c_proj",
        "decoder/final_norm": "transformer.ln_f",
        "head/output": "lm_head.weight",
    },
    {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1),
    },
    {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    ours=lambda config: {"ff_width": config.get("n_inner", 0)},
    theirs=lambda model: {"n_inner": model.ff_width},
    prefix="transformer.",
    transposed=False,
)


def _t5_modules() -> dict:
    made = {"embedding": "shared.weight", "head/output": "lm_head.weight"}
    for stack, looks in (
        ("encoder", {"": "SelfAttention"}),
        ("decoder", {"": "SelfAttention", "cross_": "EncDecAttention"}),
    ):
        block, ours = f"{stack}.block.{{i}}.layer.", f"{stack}/layers/"
        for number, (kind, theirs) in enumerate(looks.items()):
            for part, short in {"query": "q", "key": "k", "value": "v", "out": "o"}.items():
                made[f"{ours}{kind}attention/{part}"] = f"{block}{number}.{theirs}.{short}"
            made[f"{ours}{kind}attention_norm"] = f"{block}{number}.layer_norm"
        last = f"{block}{len(looks)}."
        for part, theirs in {"wi": "wi_0", "gate": "wi_1", "wo": "wo"}.items():
            made[f"{ours}feed_forward/{part}"] = f"{last}DenseReluDense.{theirs}"
        made[f"{ours}feed_forward_norm"] = f"{last}layer_norm"
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        made |= {f"{stack}/relative_bias/embedding": bias, f"{stack}/final_norm": f"{stack}.final_layer_norm"}
    return made


def _t5_ours(config: dict) -> dict:
    gated, _, activation = config["feed_forward_proj"].rpartition("-")
    return {
        "activation": "gelu_new" if gated and activation == "gelu" else activation,  # tanh is what 1.1 means
        "gated": bool(gated),
        "decoder_layers": config.get("num_decoder_layers", config["num_layers"]),
        "scale_logits": config.get("scale_decoder_outputs", config["tie_word_embeddings"]),
        "attention_dropout": config["dropout_rate"],
        "ff_dropout": config["dropout_rate"],
    }


def _t5_theirs(model: Model) -> dict:
    activation = "gelu" if model.activation == "gelu_tanh" and model.gated else named(model)
    return {
        "feed_forward_proj": ("gated-" if model.gated else "") + activation,
        "num_decoder_layers": model.decoder_layers,
        "tie_word_embeddings": model.scale_logits,  # it says whether logits are scaled, too
        "is_encoder_decoder": True,
    }


T5 = Family(
    "T5ForConditionalGeneration",
    {
        "num_layers": "layers",
        "d_model": "width",
        "num_heads": "heads",
        "d_kv": "head_size",
        "d_ff": "ff_width",
        "layer_norm_epsilon": "norm_epsilon",
        "relative_attention_num_buckets": "relative_buckets",
        "relative_attention_max_distance": "relative_distance",
        "vocab_size": "vocab_size",
        "dropout_rate": "dropout",
    },
    {
        "architecture": "encoder_decoder",
        "norm": "rms_norm",
        "bias": False,
        "positions": "relative",
        "scale_attention": False,
    },
    _t5_modules(),
    {
        "feed_forward_proj": "relu",
        "layer_norm_epsilon": 1e-6,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "tie_word_embeddings": True,
        "dropout_rate": 0.1,
    },
    ours=_t5_ours,
    theirs=_t5_theirs,
)


def _llama_ours(config: dict) -> dict:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise Refusal(BAD_DATA, f"config.json: rope_type={kind!r}: expected 'default', angles that are not scaled")
    return {
        "rotary_base": float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
        "head_size": config.get("head_dim", 0),
        "kv_heads": config.get("num_key_value_heads", 0),
    }


def _llama_theirs(model: Model) -> dict:
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rotary_base},
        "rope_theta": model.rotary_base,  # where transformers 4 looks
        "head_dim": model.head_size,
        "num_key_value_heads": model.kv_heads,
    }


LLAMA = Family(
    "LlamaForCausalLM",
    {
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "intermediate_size": "ff_width",
        "hidden_act": "activation",
        "rms_norm_eps": "norm_epsilon",
        "max_position_embeddings": "max_length",
        "vocab_size": "vocab_size",
        "tie_word_embeddings": "tied",
        "attention_dropout": "attention_dropout",
    },
    {"architecture": "decoder", "gated": True, "norm": "rms_norm", "bias": False, "positions": "rotary"},
    {
        "embedding": "model.embed_tokens.weight",
        "decoder/layers/attention_norm": "model.layers.{i}.input_layernorm",
        "decoder/layers/attention/query": "model.layers.{i}.self_attn.q_proj",
        "decoder/layers/attention/key": "model.layers.{i}.self_attn.k_proj",
        "decoder/layers/attention/value": "model.layers.{i}.self_attn.v_proj",
        "decoder/layers/attention/out": "model.layers.{i}.self_attn.o_proj",
        "decoder/layers/feed_forward_norm": "model.layers.{i}.post_attention_layernorm",
        "decoder/layers/feed_forward/wi": "model.layers.{i}.mlp.gate_proj",
        "decoder/layers/feed_forward/gate": "model.layers.{i}.mlp.up_proj",
        "decoder/layers/feed_forward/wo": "model.layers.{i}.mlp.down_proj",
        "decoder/final_norm": "model.norm",
        "head/output": "lm_head.weight",
    },
    {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "tie_word_embeddings": False, "attention_dropout": 0.0},
    {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1},
    ours=_llama_ours,
    theirs=_llama_theirs,
    prefix="model.",
)

FAMILIES = {"bert": BERT, "roberta": ROBERTA, "gpt2": GPT2, "t5": T5, "llama": LLAMA}
