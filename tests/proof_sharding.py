"""Eight simulated devices in three meshes, four microbatches, and both, against one of either, for
every architecture and for parts that lie on a mesh in a way of their own: loss and gradients in
float64, then the losses of 20 steps in float32 at the peak learning rate.

Run by hand: python tests/proof_sharding.py. Of this, parallel/test_mesh.py runs parts, and a few
train steps in float64, which compile in half the time.
"""

import json
import os
import re
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import optax

from t5x_lite.config import RunConfig
from t5x_lite.config import files as config_files
from t5x_lite.config.permission import allow
from t5x_lite.data.store.prepare import prepare
from t5x_lite.resolve import resolve, text_data
from t5x_lite.training.log import mean_metrics
from t5x_lite.training.loop import Run

ROOT = Path(__file__).parent.parent
LENGTHS = {"inputs": 58, "targets": 14}
CASES = {
    "encoder": ("bert_tiny", "masked_lm", {"sequence_length": 68}),
    "decoder": ("gpt_tiny", "causal_lm", {"sequence_length": 64}),
    "prefix_decoder": ("gpt_tiny", "prefix_lm", {"sequence_length": 64}),
    "encoder_decoder": ("t5_tiny", "iid_denoising", {"inputs": 80, "targets": 40}),
}
# Parts that lie on a mesh in a way of their own: name → architecture, and what its model has.
PARTS = {
    "grouped queries": (
        "decoder",
        {"num_kv_heads": 2, "positions": "rotary", "parallel_residual": True},
    ),
    "multi-query": (
        "decoder",
        {"num_kv_heads": 1, "positions": "transformer_xl", "tie_embeddings": False},
    ),
    "shared stacks": (
        "encoder_decoder",
        {"shared_stacks": True, "shared_layers": "all", "positions": "shaw"},
    ),
    "grouped queries, dropout": ("decoder", {"num_kv_heads": 2, "dropout": 0.1}),
    "LSTM": ("decoder", {"mixer": "lstm", "positions": "none"}),
    "factorised": ("encoder", {"embedding_size": 16, "positions": "alibi", "rezero": True}),
    "experts": (
        "decoder",
        {"num_layers": 4, "feed_forward": "experts(num=4, top_k=2, capacity=1.0, every=2)"},
    ),
    "Switch": (
        "encoder_decoder",
        {"feed_forward": "experts(num=4, top_k=1, d_ff=32, kind='gated_mlp')", "bias": False},
    ),
    # Written for one device, as in docs/how-to/own-block.md: it says nothing of a mesh.
    "the manual's mixer": (
        "decoder",
        {"mixer": "linear_attention.LinearAttention", "positions": "none"},
    ),
    "window": ("decoder", {"attention_rules": ("window(size=9)",)}),
    "local and global layers": (
        "decoder",
        {
            "positions": "rotary(base=500.0, fraction=0.5)",
            "layer_pattern": ("global", "local"),
            "local_rules": ("window(size=9)",),
            "local_positions": "rotary",
            "qk_norm": "head",
            "norm_position": "both",
            "attention_softcap": 5.0,
            "logits_softcap": 5.0,
        },
    ),
    "input layers of each stack": (
        "encoder_decoder",
        {"positions": "learned", "embedding_norm": True, "shared_input_layers": False},
    ),
    "biases of each layer": ("encoder_decoder", {"positions": "relative(per_layer=True)"}),
    "a norm of its own for each part": (
        "encoder",
        {"parallel_residual": True, "shared_norm": False, "attention_bias": "qkv"},
    ),
}
# Objectives with a loss of their own: name → architecture, objective
OBJECTIVES = {"the manual's ELECTRA": ("encoder", "electra.replaced_tokens")}
# Optimizers whose state has other shapes than the parameters.
OPTIMIZERS = {
    "the manual's Shampoo": ("decoder", "my_shampoo.shampoo"),
    "Adafactor": ("encoder_decoder", "adafactor"),
    "Lion": ("decoder", "lion"),
}
VARIANTS = {
    "8 devices": ({"mesh": {"data": 2, "fsdp": 2, "tensor": 2}}, 8),
    "4 microbatches": ({"training": {"microbatches": 4}}, 1),
    "both": ({"mesh": {"data": 2, "fsdp": 2, "tensor": 2}, "training": {"microbatches": 4}}, 8),
    "sequence": ({"mesh": {"fsdp": 2, "sequence": 2, "tensor": 2}}, 8),
    "sequence and microbatches": (
        {"mesh": {"fsdp": 2, "sequence": 2, "tensor": 2}, "training": {"microbatches": 4}},
        8,
    ),
    # More of tensor than grouped key heads, each of which is then on several devices.
    "sequence and tensor": ({"mesh": {"sequence": 2, "tensor": 4}}, 8),
    "fsdp 2": ({"mesh": {"fsdp": 2}}, 2),
    "tensor 2": ({"mesh": {"tensor": 2}}, 2),
    "sequence 2": ({"mesh": {"sequence": 2}}, 2),
    "fsdp 2 and tensor 2": ({"mesh": {"fsdp": 2, "tensor": 2}}, 4),
    "data 2": ({"mesh": {"data": 2}}, 2),
    "expert 4": ({"mesh": {"expert": 4}}, 4),
    "expert 2 and fsdp 2": ({"mesh": {"expert": 2, "fsdp": 2}}, 4),
    "expert 2 and tensor 2": ({"mesh": {"expert": 2, "tensor": 2}}, 4),
    "expert 2 and sequence 2": ({"mesh": {"expert": 2, "sequence": 2}}, 4),
}


def module_of_the_manual(page: str, title: str, directory: Path) -> None:
    """Write the module of that title, as a page of the manual has it, where it can be imported."""
    text = (ROOT / "docs/how-to" / page).read_text()
    code = re.search(rf'```python title="{title}"\n(.*?)```', text, re.DOTALL)
    (directory / title).write_text(code[1])
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


@contextmanager
def manuals_modules():
    """Where the modules of the manual's pages can be imported, and settings may name them."""
    with (
        tempfile.TemporaryDirectory() as directory,
        allow(["linear_attention", "electra", "my_shampoo"]),
    ):
        module_of_the_manual("own-block.md", "linear_attention.py", Path(directory))
        module_of_the_manual("own-loss.md", "electra.py", Path(directory))
        module_of_the_manual("own-optimizer.md", "my_shampoo.py", Path(directory))
        yield


def merged(values: dict, more: dict) -> dict:
    """`values` with the nested settings of `more`."""
    return values | {
        k: merged(values.get(k, {}), v) if isinstance(v, dict) else v for k, v in more.items()
    }


def architecture_of(case: str) -> str:
    """The architecture of a case."""
    named = {**PARTS, **OBJECTIVES, **OPTIMIZERS}
    return named[case][0] if case in named else case


def build(case: str, source: str, more: dict) -> RunConfig:
    """The tiny config of a case, narrow, on the given text: split documents make rows of unequal
    targets.
    """
    _, parts = PARTS.get(case, (case, {}))
    optimizer = {"warmup_steps": 0, "average": "ema(decay=0.5)"}
    if case in OPTIMIZERS:
        _, optimizer["name"] = OPTIMIZERS[case]
        optimizer["weight_decay"] = 0.0  # Adafactor has none
    name, objective, lengths = CASES[architecture_of(case)]
    if case in OBJECTIVES:  # its generator has a quarter of the heads
        _, objective = OBJECTIVES[case]
        parts = {"num_heads": 8}
    base = config_files.read_settings(name)
    base["data"]["lengths"] = lengths
    data = {
        "source": source,
        "tokenizer": "bytes",
        "batch_size": 16,
        "document": "block",
        "split_documents": True,
    }
    model = {"architecture": architecture_of(case), "d_model": 32, "d_ff": 64, "scan": True} | parts
    ours = {"objective": objective, "data": data, "model": model, "optimizer": optimizer}
    return config_files.build(RunConfig, merged(merged(base, ours), more))


def make_run(config, corpus, devices) -> Run:
    """The run of a config on so many devices."""
    resolved = resolve(config, corpus.tokenizer.vocabulary)
    return Run(resolved, text_data(resolved, corpus), jax.devices()[:devices])


def gradients(config, corpus, devices):
    """Mean loss, gradients and the number of targets of each row, of the first batch in float64."""
    with jax.enable_x64(True):
        config = replace(config, model=replace(config.model, dtype="float64"))
        run = make_run(config, corpus, devices)
        with run.within():
            state = run.fresh_state()
            batch = run.batch(run.batches, 0)
            grads, sums = jax.jit(run.program.loss.gradient)(state.params, batch, None)
            weights = next(np.asarray(v) for k, v in batch.items() if k.endswith("_weights"))
            loss = mean_metrics(jax.device_get(sums))["total_loss"]
            return jax.device_get(grads), loss, weights.sum(1)


def losses(config, corpus, devices, steps):
    """The loss of each of the first steps, in float32."""
    run = make_run(config, corpus, devices)
    made = []
    with run.within():
        state = run.fresh_state()
        for step in range(steps):
            state, figures = run.train_step(state, run.batch(run.batches, step))
            made.append(mean_metrics(jax.device_get(figures["sums"]))["total_loss"])
    return np.array(made)


def train_steps(config, corpus, devices, steps):
    """Loss and norm of the gradient of each of the first steps in float64; the parameters after
    them and their average, and the average that the optimizer keeps of the gradients.
    """
    made = []
    with jax.enable_x64(True):
        config = replace(config, model=replace(config.model, dtype="float64"))
        run = make_run(config, corpus, devices)
        with run.within():
            state = run.fresh_state()
            for step in range(steps):
                state, figures = run.train_step(state, run.batch(run.batches, step))
                figures = jax.device_get(figures)
                loss = mean_metrics(figures["sums"])["total_loss"]
                made.append((loss, figures["gradient_norm"]))
            average = optax.tree.get(state.opt_state, "mu")
            parameters = state.params, run.whole(state)
            return np.array(made), jax.device_get(parameters), jax.device_get(average)


def relative(a, b) -> float:
    """The largest difference of two trees, relative to the largest value of each leaf. (The
    gradient of a key's bias is zero but for rounding: a leaf counts as at least 10⁻⁶ of the
    largest.)
    """
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    least = 1e-6 * max(np.abs(x).max() for x in a)
    return max(
        float(np.abs(x - y).max() / max(np.abs(x).max(), least)) for x, y in zip(a, b, strict=True)
    )


def applies(case: str, more: dict) -> bool:
    """Whether a variant computes the same: each microbatch draws its own dropout, and balances its
    own experts.
    """
    has_experts = case in ("experts", "Switch")
    if "training" in more and ("dropout" in case or has_experts):
        return False
    return "expert" not in more.get("mesh", {}) or has_experts


def prove(
    source: str,
    cases=(*CASES, *PARTS, *OBJECTIVES, *OPTIMIZERS),
    steps: int = 20,
    variants=tuple(VARIANTS),
) -> dict:
    """The figures: case → variant → relative differences."""
    with manuals_modules():
        return {case: prove_case(source, case, steps, variants) for case in cases}


def prove_training(source: str, case: str, variant: str, steps: int) -> dict:
    """The relative differences of a few steps in float64."""
    one, other = build(case, source, {}), build(case, source, VARIANTS[variant][0])
    corpus = prepare(one.data)
    figures, parameters, gradients = train_steps(one, corpus, 1, steps)
    figures2, parameters2, gradients2 = train_steps(other, corpus, VARIANTS[variant][1], steps)
    return {
        "figures": float((np.abs(figures - figures2) / figures).max()),
        "parameters": relative(parameters, parameters2),
        "gradients": relative(gradients, gradients2),
    }


def prove_case(source: str, case: str, steps: int, variants) -> dict:
    """The figures of one case."""
    one = build(case, source, {})
    corpus = prepare(one.data)
    grads, loss, targets = gradients(one, corpus, 1)
    curve = losses(one, corpus, 1, steps)
    figures = {"unequal_targets": bool(targets.min() < targets.max())}
    for name in variants:
        more, devices = VARIANTS[name]
        if not applies(case, more):
            continue
        other = build(case, source, more)
        grads2, loss2, _ = gradients(other, corpus, devices)
        curve2 = losses(other, corpus, devices, steps)
        figures[name] = {
            "float64 loss": abs(loss - loss2) / loss,
            "float64 gradients": relative(grads, grads2),
            "float32 losses": float((np.abs(curve - curve2) / curve).max()),
        }
    return figures


SIMULATED = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}

if __name__ == "__main__":
    os.environ.update(SIMULATED)  # read when jax first looks for devices
    text = sys.argv[1] if len(sys.argv) > 1 else "python_docs"
    if text != "python_docs" and not Path(text).exists():
        sys.exit(f"{text}: no such file")
    print(json.dumps(prove(text), indent=2))
