"""Published model sizes: --config=published:gpt3_175b, and so on. Each row names the config that
holds the recipe of its family, the settings that differ for this size, the published number of
parameters, and its source. `pytest tests/configs/test_published.py` counts the parameters of each;
if the count differs from the published one, the row says why. None was trained here.

python -m t5x_lite train --config=published:t5_small --config.data.source='text/*.txt' --workdir=DIR
"""

from typing import NamedTuple

import t5x_lite
from t5x_lite.config import variant


class Size(NamedTuple):
    """One published size: a recipe, the differences from it, and the printed number of parameters
    (with a unit, or exact) with its source.
    """

    recipe: str
    model: dict
    printed: str
    source: str
    optimizer: dict = {}
    data: dict = {}
    steps: int = 0  # 0: as in the recipe
    why_not: str = ""  # why our count differs from the printed number


def shape(
    num_layers: int, d_model: int, num_heads: int, head_dim: int = 0, d_ff: int = 0, **more
) -> dict:
    """Return the model settings for a shape."""
    return {
        "num_layers": num_layers,
        "d_model": d_model,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "d_ff": d_ff,
        **more,
    }


ATTENTION = "Vaswani et al., 2017, table 3"
BERT = "Devlin et al., 2019, §3"
GPT2 = "released checkpoint; the paper's table 2 miscounts, as its repository says"
GPT3 = "Brown et al., 2020, table D.1 (table 2.1 rounds to 350M, 13.0B, 175.0B)"
T5 = "released checkpoint of Raffel et al., 2020"
T5_1_1 = "released checkpoint"
GOPHER = "Rae et al., 2021, table 1"
LLAMA = "released checkpoint; Touvron et al., 2023, table 2 prints it in billions"
MEGATRON = {"vocab_size": 51200}  # 50,257 padded (Shoeybi et al., 2019, §4)
VOCABULARY = (
    "about 37,000 shared pieces are published, not how many; no single number gives both sizes of "
    "table 3"
)


def gpt3(
    num_layers: int, d_model: int, num_heads: int, printed: str, rate: float, rows: int
) -> Size:
    """Return a size of GPT-3, trained on 300 billion tokens in rows of 2,048.

    A step reads 0.5M to 3.2M tokens, as rounded in table 2.1. In the paper, the batch grows from
    32,000 tokens over the first 4 to 12 billion tokens; here it is full from the start.

    Args:
        printed: number of parameters in table D.1.
        rate: peak learning rate.
        rows: batch size.
    """
    return Size(
        "gpt2_small",
        shape(num_layers, d_model, num_heads, vocab_size=50257, max_length=2048),
        printed,
        GPT3,
        {"learning_rate": rate},
        {"batch_size": rows, "lengths": {"sequence_length": 2048}},
        steps=round(300e9 / (rows * 2048)),
    )


# Steps of the two larger models, which read 1.4 · 10¹² tokens (table 2) in batches of 4M. The two
# smaller ones read 10¹².
LLAMA_LONG = 334_000
# The training length of the released models (§3.7): 10¹² tokens
T5_RELEASED = {"data": {"batch_size": 2048}, "steps": 1_000_000}

SIZES = {
    "transformer_base": Size("transformer_base", {}, "65M", ATTENTION, why_not=VOCABULARY),
    "transformer_big": Size(
        "transformer_base",
        shape(6, 1024, 16, 64, 4096, dropout=0.3, embedding_stddev=1024**-0.5),
        "213M",
        ATTENTION,
        {"learning_rate": 1024**-0.5 * 4000**-0.5},
        steps=300_000,
        why_not=VOCABULARY,
    ),
    "bert_base": Size("bert_base", {}, "110M", BERT),
    "bert_large": Size(
        "bert_base",
        shape(24, 1024, 16),
        "340M",
        BERT,
        why_not="the released one has 335M to 336M, with its heads or without; the paper rounds",
    ),
    "roberta_large": Size("roberta_large", {}, "355M", "Liu et al., 2019, §5"),
    "gpt": Size("gpt", {}, "116,534,784", "released checkpoint"),
    "gpt2_small": Size("gpt2_small", {}, "124,439,808", GPT2),
    "gpt2_medium": Size("gpt2_small", shape(24, 1024, 16), "354,823,168", GPT2),
    "gpt2_large": Size("gpt2_small", shape(36, 1280, 20), "774,030,080", GPT2),
    "gpt2_xl": Size("gpt2_small", shape(48, 1600, 25), "1,557,611,200", GPT2),
    "megatron_8b": Size(
        "gpt2_small",
        shape(72, 3072, 24, **MEGATRON, dropout=0.1, attention_dropout=0.1),
        "8.3B",
        "Shoeybi et al., 2019, table 2; §4 for the recipe",
        {
            "learning_rate": 1.5e-4,
            "schedule_unit": "steps",
            "warmup_steps": 3000,
            "decay_steps": 300_000,
            "final_lr_ratio": 1 / 15,
            "weight_decay": 0.01,
        },
        steps=300_000,
    ),
    "turing_nlg_17b": Size(
        "gpt2_small",
        shape(78, 4256, 28),
        "17B",
        "Microsoft Research, 2020 (announcement)",
        {
            "learning_rate": 1.5e-4,
            "schedule_unit": "steps",
            "warmup_steps": 3200,
            "decay_steps": 500_000,
        },
        steps=300_000,
    ),
    # Every other layer of GPT-3 attends only to a local band (§2.1), which does not change the
    # number of parameters. Here all layers attend to the whole context.
    "gpt3_125m": gpt3(12, 768, 12, "125M", 6e-4, rows=256),
    "gpt3_350m": gpt3(24, 1024, 16, "356M", 3e-4, rows=256),
    "gpt3_760m": gpt3(24, 1536, 16, "760M", 2.5e-4, rows=256),
    # For 1.3B, table 2.1 prints 24 heads of 128, which would make 1.5 B parameters, and for 13B a
    # width of 5140. Table D.1 counts with 16 heads and 5120.
    "gpt3_1.3b": gpt3(24, 2048, 16, "1.32B", 2e-4, rows=512),
    "gpt3_2.7b": gpt3(32, 2560, 32, "2.65B", 1.6e-4, rows=512),
    "gpt3_6.7b": gpt3(32, 4096, 32, "6.66B", 1.2e-4, rows=1024),
    "gpt3_13b": gpt3(40, 5120, 40, "12.85B", 1e-4, rows=1024),
    # A step reads 3.1M tokens instead of 3.2M, so that its rows divide evenly over many devices.
    "gpt3_175b": gpt3(96, 12288, 96, "174.6B", 0.6e-4, rows=1536),
    "t5_small": Size("t5_base", shape(6, 512, 8, 64, 2048), "60,506,624", T5, **T5_RELEASED),
    "t5_base": Size("t5_base", {}, "222,903,552", T5, **T5_RELEASED),
    "t5_large": Size(
        "t5_base",
        shape(24, 1024, 16, 64, 4096),
        "737,668,096",
        T5 + "; the paper's §3.7 prints 770M",
        **T5_RELEASED,
    ),
    "t5_3b": Size("t5_base", shape(24, 1024, 32, 128, 16384), "2,851,598,336", T5, **T5_RELEASED),
    "t5_11b": Size(
        "t5_base", shape(24, 1024, 128, 128, 65536), "11,307,321,344", T5, **T5_RELEASED
    ),
    "t5_1_1_small": Size("t5_1_1_base", shape(8, 512, 6, 64, 1024), "76,961,152", T5_1_1),
    "t5_1_1_base": Size("t5_1_1_base", {}, "247,577,856", T5_1_1),
    "t5_1_1_large": Size("t5_1_1_base", shape(24, 1024, 16, 64, 2816), "783,150,080", T5_1_1),
    "t5_1_1_xl": Size("t5_1_1_base", shape(24, 2048, 32, 64, 5120), "2,849,757,184", T5_1_1),
    "t5_1_1_xxl": Size("t5_1_1_base", shape(24, 4096, 64, 64, 10240), "11,135,332,352", T5_1_1),
    "palm_8b": Size(
        "palm_540b", shape(32, 4096, 16, 256), "8.63B", "Chowdhery et al., 2022, table 1"
    ),
    "palm_62b": Size(
        "palm_540b", shape(64, 8192, 32, 256), "62.50B", "Chowdhery et al., 2022, table 1"
    ),
    "palm_540b": Size(
        "palm_540b",
        {},
        "540.35B",
        "Chowdhery et al., 2022, table 1",
        why_not="540.36 with the scales of its norms, 540.35 without: they seem not to be counted",
    ),
    "gopher_280b": Size("gopher_280b", {}, "280B", GOPHER),
    "chinchilla_70b": Size(
        "gopher_280b",
        shape(80, 8192, 64, 128),
        "70B",
        "Hoffmann et al., 2022, table 4",
        # 1.4 · 10¹² tokens at 3M per step; the paper begins with 1.5M and doubles midway. It prints
        # neither weight decay nor clipping, so these are Gopher's.
        {"learning_rate": 1e-4, "initial_lr_ratio": 1e-3},
        {"batch_size": 1536},
        steps=445_000,
    ),
    "llama_7b": Size("llama_7b", {}, "6,738,415,616", LLAMA),
    "llama_13b": Size("llama_7b", shape(40, 5120, 40, 0, 13824), "13,015,864,320", LLAMA),
    "llama_33b": Size(
        "llama_7b",
        shape(60, 6656, 52, 0, 17920),
        "32,528,943,616",
        LLAMA,
        {"learning_rate": 1.5e-4},
        steps=LLAMA_LONG,
    ),
    "llama_65b": Size(
        "llama_7b",
        shape(80, 8192, 64, 0, 22016, norm_epsilon=1e-5),
        "65,285,660,672",
        LLAMA,
        {"learning_rate": 1.5e-4},
        steps=LLAMA_LONG,
    ),
}


def get_config(name: str = ""):
    """Return the recipe of SIZES[name] at that size."""
    size = variant(SIZES, name)
    config = t5x_lite.get_config(size.recipe)
    config.model.update(size.model)
    config.optimizer.update(size.optimizer)
    config.data.update(size.data)
    config.training.steps = size.steps or config.training.steps
    # Rows cannot be longer than the table of positions.
    if config.data.lengths.sequence_length > config.model.max_length > 0:
        config.data.lengths.sequence_length = config.model.max_length
    return config
