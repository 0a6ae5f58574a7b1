"""The rows of Narang et al., 2021 ("Do Transformer Modifications Transfer Across Implementations
and Applications?", table 1) that can be expressed as model settings: --config=modifications:geglu,
and so on. As in the paper, the recipe is T5 1.0 base with LayerNorm and biases. The number of
parameters is within 1 M of the printed one (`pytest tests/configs/test_published.py`). None was
trained here.

The other rows are not included, because they are not settings of our Transformer: Funnel, Evolved
and Weighted Transformer, Synthesizers, convolutions, adaptive and mixed softmax, Fixup.

python -m t5x_lite train --config=modifications:swiglu --config.data.source='text/*.txt'
--workdir=DIR
"""

import t5x_lite
from t5x_lite.config import variant

GATED = {"feed_forward": "gated_mlp", "d_ff": 2048}
UNTIED = {"tie_embeddings": False, "scale_logits": False}
FACTORISED = {"embedding_size": 128}

# Name: differences from the vanilla Transformer, and the printed number of parameters in millions
MODIFICATIONS = {
    "vanilla": ({}, 223),
    "gelu": ({"activation": "gelu"}, 223),
    "swish": ({"activation": "silu"}, 223),
    "elu": ({"activation": "elu"}, 223),
    "selu": ({"activation": "selu"}, 223),
    "sigmoid": ({"activation": "sigmoid"}, 223),
    "softplus": ({"activation": "softplus"}, 223),
    "glu": ({"activation": "sigmoid", **GATED}, 223),
    "geglu": ({"activation": "gelu", **GATED}, 223),
    "reglu": ({"activation": "relu", **GATED}, 223),
    "swiglu": ({"activation": "silu", **GATED}, 223),
    "liglu": ({"activation": "linear", **GATED}, 223),
    "rms_norm": ({"norm": "rms_norm"}, 223),
    "rezero": ({"norm": "none", "rezero": True}, 223),
    "rezero_layer_norm": ({"rezero": True}, 223),
    "rezero_rms_norm": ({"norm": "rms_norm", "rezero": True}, 223),
    "24_layers": ({"num_layers": 24, "d_ff": 1536, "num_heads": 6}, 224),
    "18_layers": ({"num_layers": 18, "d_ff": 2048, "num_heads": 8}, 223),
    "8_layers": ({"num_layers": 8, "d_ff": 4608, "num_heads": 18}, 223),
    "6_layers": ({"num_layers": 6, "d_ff": 6144, "num_heads": 24}, 223),
    "block_sharing": ({"shared_layers": "all", **UNTIED}, 65),
    "block_sharing_factorized": ({"shared_layers": "all", **FACTORISED, **UNTIED}, 45),
    "block_sharing_factorized_shared": ({"shared_layers": "all", **FACTORISED}, 20),
    "encoder_block_sharing": ({"shared_layers": "encoder", **UNTIED}, 170),
    "decoder_block_sharing": ({"shared_layers": "decoder", **UNTIED}, 144),
    "factorized": ({**FACTORISED, **UNTIED}, 227),
    "factorized_shared": (FACTORISED, 202),
    "tied_inputs": (UNTIED, 248),
    "tied_decoder": ({"shared_embeddings": False}, 248),
    "untied": ({"shared_embeddings": False, **UNTIED}, 273),
    # Mesh TensorFlow's capacity of 2.0 is relative to tokens, which choose two experts each; ours
    # is relative to choices.
    "mixture_of_experts": (
        {"feed_forward": "experts(num=32, top_k=2, capacity=1.0, every=4, d_ff=1536)"},
        648,
    ),
    "switch": ({"feed_forward": "experts(num=32, top_k=1, capacity=1.25, every=4)"}, 1100),
}


def get_config(name: str = "vanilla"):
    """Return T5 1.0 base with the changes of MODIFICATIONS[name]."""
    changed, _ = variant(MODIFICATIONS, name)
    config = t5x_lite.get_config("t5_base")
    config.model.update(norm="layer_norm", bias=True)
    config.model.update(changed)
    return config
