import re
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, with_devices
from jax._src.cudnn import fused_attention_stablehlo as fused_attention
from jax.experimental.pallas import tpu as pltpu
from model.proofs import ROW, small

from t5x_lite.config import Model
from t5x_lite.config.files import load
from t5x_lite.errors import UserError
from t5x_lite.hardware import PlannedDevice
from t5x_lite.model import kernels
from t5x_lite.model.masks import AttentionMask, Window
from t5x_lite.model.parts.positions import make_positions
from t5x_lite.model.transformer import Transformer, parameter_shapes
from t5x_lite.resolve import resolve_model, resolve_without_text
from t5x_lite.training.program import Program

MASKS = {
    "packed": {"packed": True},
    "packed, causal": {"packed": True, "causal": True},
    "packed, prefix": {"packed": True, "causal": True, "prefix": True},
    "one segment": {},
    "one segment, causal": {"causal": True},
    "one segment, prefix": {"causal": True, "prefix": True},
}


def drawn(kind: str, length: int = 24, groups: int = 2, size: int = 8):
    """Random q, k and v; a mask; and which queries are no padding."""
    rng = np.random.default_rng(0)
    options = dict(MASKS[kind])
    segments = np.sort(rng.integers(1, 4, (2, length)), 1)
    segments[0, -5:] = 0
    if not options.get("packed"):
        segments = np.minimum(segments, 1)
    if options.pop("prefix", False):
        options["prefix"] = jnp.asarray(rng.random((2, length)) < 0.2)
    qkv = [
        jnp.asarray(rng.normal(size=(2, heads, length, size)), jnp.float32)
        for heads in (4, groups, groups)
    ]
    ids = jnp.asarray(segments)
    return qkv, AttentionMask(ids, ids, **options), (segments > 0)[:, None, :, None]


def assert_same_as_reference(kernel, qkv, mask, is_real, bias=None, **tolerance):
    """Values and gradients, where a query is no padding."""

    def loss(kernel, q, k, v):
        y = jnp.where(is_real, kernel(q, k, v, mask, bias), 0)
        return jnp.sin(y).sum(), y

    def computed(kernel):
        value_and_grad = jax.value_and_grad(partial(loss, kernel), (0, 1, 2), has_aux=True)
        return jax.tree.leaves(jax.jit(value_and_grad)(*qkv))

    for found, expected in zip(computed(kernel), computed(kernels.reference), strict=True):
        np.testing.assert_allclose(found, expected, **tolerance)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("min_half_length", [5, 256])
def test_the_plain_kernel_is_the_reference(monkeypatch, min_half_length, kind, groups):
    monkeypatch.setattr(kernels, "_MIN_HALF_LENGTH", min_half_length)
    qkv, mask, is_real = drawn(kind, groups=groups)
    bias = jax.random.normal(jax.random.key(0), (1, 4, 24, 24))

    def plain(q, k, v, mask, bias):
        return kernels.plain(q, k, v, mask, mask.bias(bias))

    assert_same_as_reference(plain, qkv, mask, is_real, bias, rtol=1e-4, atol=1e-5)


# The rows of the table in the manual: each with the settings and the mask that it tells of.
ROWS_OF_THE_TABLE = [
    ("one segment a row, no bias", {}, {}),
    ("several segments a row", {}, {"packed": True}),
    ("the prefix of a prefix decoder", {}, {"prefix": jnp.ones((2, 256), bool)}),
    ("a learned prefix (`--adapt='prefix(20)'`)", {"prefix_length": 20}, {}),
    ("a position bias (`relative`, `alibi`)", {"positions": "relative"}, {}),
    ("a position bias (`relative`, `alibi`)", {"positions": "alibi"}, {}),
    ("`shaw`, `transformer_xl`, or dropout on its weights", {"positions": "shaw"}, {}),
    ("`shaw`, `transformer_xl`, or dropout on its weights", {"positions": "transformer_xl"}, {}),
    ("`shaw`, `transformer_xl`, or dropout on its weights", {"attention_dropout": 0.1}, {}),
    (
        "rules, such as a window",
        {"attention_rules": ("window(size=9)",)},
        {"rules": (Window(9),)},
    ),
    ("a soft cap", {"attention_softcap": 50.0}, {}),
    ("float32", {"dtype": "float32"}, {}),
    ("lengths that are no multiples of 128", {}, {"length": 100}),
    ("odd lengths", {}, {"length": 257}),
    ("one token at a time", {}, {"queries": 1}),
]


@pytest.mark.parametrize(("need", "settings", "mask_options"), ROWS_OF_THE_TABLE)
def test_the_table_of_kernels_is_that_of_the_manual(need, settings, mask_options, monkeypatch):
    monkeypatch.setattr(kernels, "target_kind", lambda: "NVIDIA A100-SXM4-80GB")
    lines = (ROOT / "docs/concepts/blocks.md").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {need} |"))
    options = dict(mask_options)
    model = Model(**{"d_model": 128, "num_heads": 2, "dtype": "bfloat16", **settings})
    length = options.pop("length", 256)
    config = resolve_model(model, vocab_size=10, max_length=length)
    queries = jnp.ones((2, options.pop("queries", length)), int)
    mask = AttentionMask(queries, jnp.ones((2, length), int), causal=True, **options)
    expected = [cell.split(",")[0].strip() for cell in line.split("|")[2:5]]
    dropout = config.attention_dropout > 0
    found = [
        kernels.choose_kernel(
            config, mask, make_positions(config), dropout, platform, config.prefix_length > 0
        )
        for platform in ("cpu", "gpu", "tpu")
    ]
    assert found == expected


DEVICES = {
    "V100": PlannedDevice("Tesla V100-SXM2-16GB", "gpu"),
    "MI300X": PlannedDevice("AMD Instinct MI300X", "gpu"),
    "TPU v3": PlannedDevice("TPU v3", "tpu"),
    "A100": PlannedDevice("NVIDIA A100-SXM4-80GB", "gpu"),
    "H100": PlannedDevice("NVIDIA H100 80GB HBM3", "gpu"),
    "TPU v5e": PlannedDevice("TPU v5 lite", "tpu"),
}


def table_of_recipes() -> tuple[list[str], list[list[str]]]:
    """The manual's table of recipes and devices: its first row, and the others."""
    text = (ROOT / "docs/concepts/blocks.md").read_text()
    lines = text[text.index("| recipe |") :].split("\n\n")[0].splitlines()
    first, _, *others = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return first, others


FIRST_ROW, RECIPES = table_of_recipes()


@pytest.mark.parametrize("row", RECIPES, ids=lambda row: row[0].split("`")[1])
def test_the_table_of_recipes_is_that_of_the_manual(row):
    name, *settings = row[0].split("`")[1].split()
    overrides = [setting.removeprefix("--config.") for setting in settings]
    resolved = resolve_without_text(load(name, overrides))
    for heading, expected in zip(FIRST_ROW[1:], row[1:], strict=True):
        for device in heading.split(", "):
            program = Program(resolved, 1.0, [DEVICES[device]])
            with program.within():
                stacks = re.findall(r"\b(plain|cudnn|splash|flash)\b(?!:)", program.attention)
            assert ", ".join(dict.fromkeys(stacks)) == expected, device


def test_a_run_says_why_its_attention_has_no_better_kernel(monkeypatch):
    monkeypatch.setattr(kernels, "target_platform", lambda: "gpu")
    monkeypatch.setattr(kernels, "target_kind", lambda: "NVIDIA A100-SXM4-80GB")
    ids = jnp.ones((1, 256), int)
    mask = AttentionMask(ids, ids, causal=True)

    def explained(**settings):
        config = small(head_dim=64, **settings)
        return kernels.explain_choice(config, mask, make_positions(config))

    assert explained(dtype="bfloat16") == "cudnn"
    assert explained(dtype="float32") == "plain (cudnn: it computes in bfloat16 only)"
    assert explained(dtype="float32", attention_kernel="plain") == "plain"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("length", [114, 115, 511, 512])
@pytest.mark.parametrize("positions", ["rotary", "relative"])
@pytest.mark.parametrize("stack", ["encoder", "decoder", "prefix_decoder"])
def test_what_is_given_to_cudnn_it_can_compute_with_its_gradient(
    stack, positions, length, packed, monkeypatch
):
    """jax checks it as it lowers for CUDA, for which it needs to be told of an H100."""
    monkeypatch.setattr(kernels, "target_kind", lambda: "NVIDIA H100 80GB HBM3")
    model = Model(num_heads=2, d_model=128, positions=positions, dtype="bfloat16")
    config = resolve_model(model, vocab_size=10, max_length=length)
    ids = jnp.ones((2, length), int)
    prefix = jnp.ones((2, length), bool) if stack == "prefix_decoder" else None
    mask = AttentionMask(ids, ids, prefix, causal=stack != "encoder", packed=packed)
    kind = make_positions(config)
    chosen = kernels.choose_kernel(config, mask, kind, platform="gpu")
    assert chosen == ("plain" if length % 2 else "cudnn")
    if chosen == "plain":
        return

    def total(q, k, v, bias):
        bias = bias if kind.is_bias else None
        return kernels.cudnn(q, k, v, mask, bias).astype(jnp.float32).sum()

    monkeypatch.setattr(fused_attention, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(fused_attention, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(fused_attention, "is_cuda_compute_capability_equal", lambda of: False)
    q = jax.ShapeDtypeStruct((2, 2, length, 64), jnp.bfloat16)
    bias = jax.ShapeDtypeStruct((1, 2, length, length), jnp.bfloat16)
    traced = jax.jit(jax.grad(total, (0, 1, 2, 3)))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    lowered = traced.trace(q, q, q, bias).lower(lowering_platforms=("cuda",))
    assert "__cudnn$fmha" in lowered.as_text()


@pytest.mark.parametrize(
    ("device", "head_dim", "reason"),
    [
        ("AMD Instinct MI300X", 64, "it needs an NVIDIA GPU, this is AMD Instinct MI300X"),
        ("Tesla V100-SXM2-16GB", 64, "it needs Ampere or later, this is Tesla V100-SXM2-16GB"),
        ("Tesla T4", 64, "it needs Ampere or later, this is Tesla T4"),
        ("NVIDIA T1000 8GB", 64, "it needs Ampere or later, this is NVIDIA T1000 8GB"),
        ("NVIDIA RTX 2000 Ada Generation", 64, ""),
        ("NVIDIA A100-SXM4-80GB", 256, "it has no head_dim 256"),
        ("NVIDIA A100-SXM4-80GB", 128, ""),
        ("NVIDIA L4", 64, ""),
        ("NVIDIA H100 80GB HBM3", 256, ""),
        ("NVIDIA B200", 256, ""),
    ],
)
def test_which_gpus_have_cudnns_attention(monkeypatch, device, head_dim, reason):
    monkeypatch.setattr(kernels, "target_platform", lambda: "gpu")
    monkeypatch.setattr(kernels, "target_kind", lambda: device)
    config = small(head_dim=head_dim, dtype="bfloat16")
    ids = jnp.ones((1, 256), int)
    mask = AttentionMask(ids, ids, causal=True)
    expected = f"plain (cudnn: {reason})" if reason else "cudnn"
    assert kernels.explain_choice(config, mask, make_positions(config)) == expected


def test_a_kernel_that_is_named_computes_or_is_refused():
    """A model that names one can be made on any machine; rows that it cannot compute are refused
    when they are met.
    """
    config = small(attention_kernel="splash", dtype="float32")
    shapes = parameter_shapes(config)

    def hidden_states(params, row):
        return Transformer(config).apply({"params": params}, row).hidden_states

    with pytest.raises(UserError, match="5 × 5 are no multiples of 128"):
        jax.eval_shape(hidden_states, shapes, ROW)
    long = jax.tree.map(lambda x: jnp.zeros((1, 128), jnp.int32), ROW)
    assert "pallas_call" in str(jax.make_jaxpr(hidden_states)(shapes, long))
    relative = small(attention_kernel="splash", positions="relative")
    long_mask = AttentionMask(long["decoder_segments"], long["decoder_segments"])
    with pytest.raises(UserError, match="takes no bias"):
        kernels.choose_kernel(relative, long_mask, make_positions(relative))


def test_a_named_kernel_is_refused_where_a_prefix_is_learned():
    config = small(attention_kernel="flash", prefix_length=4, dtype="float32")
    long = jax.tree.map(lambda x: jnp.zeros((1, 128), jnp.int32), ROW)

    def hidden_states(params):
        return Transformer(config).apply({"params": params}, long).hidden_states

    with pytest.raises(UserError, match="attention_kernel=flash: its mask is for the tokens"):
        jax.eval_shape(hidden_states, parameter_shapes(config))


@pytest.mark.parametrize(("kind", "groups"), [("packed, causal", 2), ("one segment", 4)])
def test_splash_attention_is_the_reference(kind, groups):
    """As its interpreter computes it; no TPU is needed."""
    qkv, mask, is_real = drawn(kind, 128, groups, 64)
    splash = partial(kernels.splash, interpret=True)
    assert_same_as_reference(splash, qkv, mask, is_real, rtol=1e-3, atol=1e-4)


def test_the_soft_cap_of_splash_is_that_of_the_plain_kernel():
    qkv, mask, is_real = drawn("packed, causal", 128, 2, 64)

    def of_kernel(compute):
        y = jnp.where(is_real, compute(*qkv), 0)
        return np.asarray(y)

    capped = of_kernel(lambda q, k, v: kernels.splash(q, k, v, mask, softcap=2.0, interpret=True))
    plain = of_kernel(lambda q, k, v: kernels.plain(q, k, v, mask, mask.bias(), softcap=2.0))
    np.testing.assert_allclose(capped, plain, rtol=1e-3, atol=1e-4)
    uncapped = of_kernel(lambda q, k, v: kernels.plain(q, k, v, mask, mask.bias()))
    assert np.abs(capped - uncapped).max() > 0.1


SPLASH_ON_TWO = """
import sys; sys.path.insert(0, "tests")
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec
from t5x_lite.config import Mesh, Model
from t5x_lite.model import kernels
from t5x_lite.parallel import collectives as parallel
from t5x_lite.model.masks import AttentionMask
from t5x_lite.resolve import resolve_model
from t5x_lite.parallel import mesh as meshes

model = resolve_model(Model(num_heads=2, num_kv_heads=1), vocab_size=256, max_length=256)
mesh = meshes.make_mesh(Mesh(sequence=2))
rng = np.random.default_rng(0)
qkv = [jnp.asarray(rng.normal(size=(2, heads, 256, 64)), jnp.float32) for heads in (2, 1, 1)]
segments = jnp.asarray(np.sort(rng.integers(1, 4, size=(2, 256)), 1))
weights = jnp.asarray(rng.normal(size=(2, 2, 256, 64)), jnp.float32)

def own(x):
    return parallel.own_positions(x.swapaxes(1, 2)).swapaxes(1, 2)

for causal in (True, False):
    def expected(q, k, v):
        mask = AttentionMask(segments, segments, causal=causal, packed=True)
        return (kernels.reference(q, k, v, mask) * weights).sum()

    def on_each(q, k, v):
        own_segments = parallel.own_positions(segments)
        shard = parallel.part_number("sequence")
        mask = AttentionMask(
            own_segments, segments, shard=shard, shards=2, causal=causal, packed=True
        )
        y = kernels.splash(own(q), k, v, mask, interpret=True)
        return jax.lax.psum((y * own(weights)).sum(), "sequence")

    def on_two(q, k, v):
        shared = PartitionSpec()
        return jax.shard_map(
            on_each, mesh=mesh, in_specs=shared, out_specs=shared, check_vma=False
        )(q, k, v)

    one = jax.value_and_grad(expected, (0, 1, 2))(*qkv)
    with meshes.use_mesh(mesh, model):
        two = jax.jit(jax.value_and_grad(on_two, (0, 1, 2)))(*qkv)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), one, two)
"""


def test_two_devices_that_share_a_row_find_what_one_does():
    """Splash attention, each with its own queries, forward and backward."""
    command = [sys.executable, "-c", SPLASH_ON_TWO]
    subprocess.run(command, cwd=ROOT, check=True, env=with_devices(2))


@pytest.mark.parametrize(
    ("kind", "has_bias"),
    [
        ("packed, causal", True),
        ("packed, prefix", True),
        ("one segment", True),
        ("one segment, prefix", False),
    ],
)
def test_flash_attention_is_the_reference(kind, has_bias):
    """As its interpreter computes it, with the gradient of the bias."""
    qkv, mask, is_real = drawn(kind, 128, 2, 64)
    biases = [jax.random.normal(jax.random.key(0), (1, 4, 128, 128))] if has_bias else []

    def computed(kernel):
        def loss(qkv, biases):
            y = jnp.where(is_real, kernel(*qkv, mask, *biases), 0)
            return jnp.sin(y).sum(), y

        return jax.tree.leaves(jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(qkv, biases))

    with pltpu.force_tpu_interpret_mode():
        found = computed(kernels.flash)
    for leaf, expected in zip(found, computed(kernels.reference), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("length", [256, 1024])
def test_a_bias_is_added_by_flash_attention_where_rows_are_long(length):
    model = Model(num_heads=2, d_model=128, positions="relative", dtype="bfloat16")
    config = resolve_model(model, vocab_size=10, max_length=length)
    ids = jnp.ones((2, length), int)
    expected = "flash" if length == 1024 else "plain"
    mask, kind = AttentionMask(ids, ids), make_positions(config)
    assert kernels.choose_kernel(config, mask, kind, platform="tpu") == expected
    assert kernels.choose_kernel(config, mask, kind, True, "tpu") == "plain"


def test_tpus_before_the_fourth_have_no_kernels_in_bfloat16(monkeypatch):
    """Their matrix units are not in Mosaic, which compiles kernels."""
    ids = jnp.ones((2, 1024), int)
    chosen = {}
    for dtype in ("bfloat16", "float32"):
        model = Model(num_heads=2, d_model=128, dtype=dtype)
        config = resolve_model(model, vocab_size=10, max_length=1024)
        for kind in ("TPU v2", "TPU v3", "TPU v4"):
            monkeypatch.setattr(kernels, "target_kind", lambda kind=kind: kind)
            mask = AttentionMask(ids, ids, causal=True)
            chosen[dtype, kind] = kernels.choose_kernel(
                config, mask, make_positions(config), platform="tpu"
            )
    assert {key for key, kernel in chosen.items() if kernel == "plain"} == {
        ("bfloat16", "TPU v2"),
        ("bfloat16", "TPU v3"),
    }
