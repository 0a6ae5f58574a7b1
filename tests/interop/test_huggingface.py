"""What is written is read again; files from strangers are data. tests/peers/ compares with
`transformers` itself.
"""

import dataclasses
import json
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT
from flax.traverse_util import flatten_dict, unflatten_dict
from interop_cases import MODELS, make_dimensions, make_params
from model.proofs import apply

from t5x_lite import locks
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_CONFIG, NO_FILE, USAGE, UserError
from t5x_lite.interop import huggingface, peft
from t5x_lite.interop.huggingface import TaskHead
from t5x_lite.progress import messages_to
from t5x_lite.resolve import resolve_model
from t5x_lite.training.adapt import merge_low_rank

pytest.importorskip("safetensors")
from safetensors.numpy import load_file, save_file


def write(path: Path, name: str, dtype: str = "float32") -> Path:
    """A model of MODELS in the files of Hugging Face."""
    model = make_dimensions(name)
    huggingface.write(path, model, make_params(model), Tokenizer(), dtype)
    return path


def tensors_in(path: Path) -> dict[str, np.ndarray]:
    return load_file(path / "model.safetensors")


def rename(path: Path, names: dict[str, str | None]) -> None:
    """Give tensors of a file other names; None: leave them out."""
    tensors = {}
    for name, tensor in tensors_in(path).items():
        new_name = names.get(name, name)
        if new_name is not None:
            tensors[new_name] = tensor
    save_file(tensors, path / "model.safetensors")


def add(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Add tensors to a file."""
    present = tensors_in(path)
    save_file(present | tensors, path / "model.safetensors")


def leaves(path: Path) -> dict[str, np.ndarray]:
    """The parameters that are read from a directory, by path."""
    return flatten_dict(huggingface.read(path)[1], sep="/")


def assert_equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for key in left:
        np.testing.assert_array_equal(left[key], right[key], strict=True)


# Both ways.


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in MODELS), ("gpt2", "bfloat16"), ("t5", "float16")],
)
def test_what_is_written_is_read_again(tmp_path, name, dtype):
    model = make_dimensions(name)
    params = make_params(model)
    vocabulary = Tokenizer().vocabulary
    huggingface.write(tmp_path / "a", model, params, Tokenizer(), dtype)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    start = vocabulary.start if model.is_encoder_decoder else None
    assert config.get("decoder_start_token_id") == start
    assert (config["dtype"], config["eos_token_id"]) == (dtype, vocabulary.eos)

    model_read, params_read = huggingface.read(tmp_path / "a")
    dimensions = resolve_model(model_read, model.vocab_size, max_length=16)
    huggingface.write(tmp_path / "b", dimensions, params_read, Tokenizer(), dtype)
    # Gemma's norms are stored less 1, which rounds.
    error = 2e-7 if "gemma" in name else 0
    configs = [(tmp_path / copy / "config.json").read_bytes() for copy in ("a", "b")]
    assert configs[0] == configs[1]
    tensors, again = (load_file(tmp_path / copy / "model.safetensors") for copy in ("a", "b"))
    assert tensors.keys() == again.keys()
    for key, tensor in tensors.items():
        np.testing.assert_allclose(again[key], tensor, rtol=0, atol=error)

    before = flatten_dict(params, sep="/")
    after = flatten_dict(params_read, sep="/")
    assert before.keys() == after.keys()
    for key, value in after.items():
        is_written = value != 0  # rows of padding are not
        expected = before[key].astype(huggingface.DTYPES[dtype]).astype(np.float32)
        assert value.dtype == np.float32
        if key.endswith("coder/layers/attention_norm/scale") and not model.first_norm:
            assert (value[0] == 1).all()  # there is none in the first layer
            value, expected, is_written = value[1:], expected[1:], is_written[1:]
        difference = np.abs(value[is_written] - expected[is_written])
        assert difference.max() <= error
        assert is_written.mean() > 0.7


@pytest.mark.parametrize(
    ("name", "class_name"),
    [
        ("bert without a head", "BertModel"),
        ("roberta without a head", "RobertaModel"),
        ("t5 without a head", "T5Model"),
        ("t5 encoder", "T5EncoderModel"),
        ("llama without a head", "LlamaModel"),
    ],
)
def test_models_without_a_head_are_said_to_be(tmp_path, name, class_name):
    path = write(tmp_path / "model", name)
    assert json.loads((path / "config.json").read_text())["architectures"] == [class_name]
    said = []
    with messages_to(said.append):
        model, _ = huggingface.read(path)
    assert not model.lm_head
    assert said == [
        "this model has no head that predicts tokens: it can embed texts, but not generate"
    ]
    assert (model.architecture == "encoder") == (class_name not in ("T5Model", "LlamaModel"))


def test_angles_that_are_stored_must_be_those_of_the_config(tmp_path):
    """ESM's class reads them from the file."""
    path = write(tmp_path / "model", "esm")
    add(path, {"esm.rotary_embeddings.inv_freq": np.array([1.0, 0.01], np.float32)})
    huggingface.read(path)
    add(path, {"esm.rotary_embeddings.inv_freq": np.array([1.0, 0.1], np.float32)})
    with pytest.raises(UserError, match=r"holds other angles than those of rope_theta=10000\.0"):
        huggingface.read(path)


def test_a_bias_that_we_lack_must_be_zero(tmp_path):
    path = write(tmp_path / "model", "bart")
    add(path, {"final_logits_bias": np.zeros((1, 530), np.float32)})
    huggingface.read(path)
    add(path, {"final_logits_bias": np.ones((1, 530), np.float32)})
    with pytest.raises(UserError, match="final_logits_bias is not zero"):
        huggingface.read(path)


def test_a_model_without_types_is_written_with_one_of_zeros(tmp_path):
    """What `transformers` cannot do without."""
    model = make_dimensions("roberta", token_types=0)
    huggingface.write(tmp_path / "model", model, make_params(model), Tokenizer())
    read, params = huggingface.read(tmp_path / "model")
    assert read.token_types == 1
    assert not params["type_embedding"].any()


def test_the_scale_of_attention_is_in_the_kernels_of_a_t5(tmp_path):
    model = make_dimensions("t5", scale_attention=True)
    params = make_params(model)
    huggingface.write(tmp_path / "model", model, params, Tokenizer())
    read, found = huggingface.read(tmp_path / "model")
    assert not read.scale_attention
    for attention in ("attention", "cross_attention"):
        before = params["decoder"]["layers"][attention]["query"]["kernel"]
        after = found["decoder"]["layers"][attention]["query"]["kernel"]
        np.testing.assert_allclose(after, before * model.head_dim**-0.5, rtol=1e-6)


def test_heads_for_a_task_are_left_out(tmp_path):
    path = write(tmp_path / "model", "bert without a head")
    head = {"classifier.weight": np.zeros((3, 8), np.float32), "classifier.bias": np.zeros(3)}
    add(path, head)
    said = []
    with messages_to(said.append):
        model, _ = huggingface.read(path)
    assert not model.lm_head
    assert said[1:] == [f"left out: {name}, of a head for a task" for name in sorted(head)]


def test_arrays_of_jax_are_written_like_those_of_numpy(tmp_path):
    model = make_dimensions("gpt2")
    params = make_params(model)
    huggingface.write(tmp_path / "numpy", model, params, Tokenizer())
    huggingface.write(tmp_path / "jax", model, jax.device_put(params), Tokenizer())
    files = [tmp_path / kind / "model.safetensors" for kind in ("numpy", "jax")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_how_tensors_of_gpt2_lie(tmp_path):
    """Dense kernels as ours; queries, keys and values side by side; an output layer transposed."""
    params = flatten_dict(make_params(make_dimensions("gpt2, untied")), sep="/")
    tensors = tensors_in(write(tmp_path / "gpt2", "gpt2, untied"))
    attention = "decoder/layers/attention"
    for kind in ("kernel", "bias"):
        parts = [params[f"{attention}/{part}/{kind}"][1] for part in ("query", "key", "value")]
        suffix = {"kernel": "weight", "bias": "bias"}[kind]
        joined = tensors[f"transformer.h.1.attn.c_attn.{suffix}"]
        assert (joined == np.concatenate(parts, -1)).all()
    assert (tensors["lm_head.weight"] == params["head/output"].T[:530]).all()
    assert (tensors["transformer.wte.weight"] == params["embedding"][:530]).all()


def test_how_tensors_of_bert_lie(tmp_path):
    """Dense kernels transposed, and the labels of the next sentence the other way round."""
    params = flatten_dict(make_params(make_dimensions("bert with two heads")), sep="/")
    tensors = tensors_in(write(tmp_path / "bert", "bert with two heads"))
    query = params["encoder/layers/attention/query/kernel"][1]
    assert (tensors["bert.encoder.layer.1.attention.self.query.weight"] == query.T).all()
    label_kernel = params["classifier/output/kernel"]
    assert (tensors["cls.seq_relationship.weight"] == label_kernel.T[::-1]).all()
    assert (tensors["cls.seq_relationship.bias"] == params["classifier/output/bias"][::-1]).all()
    assert tensors["cls.predictions.bias"].shape == (530,)


# Reading what others have written.


def test_several_files_with_an_index(tmp_path):
    path = write(tmp_path / "gpt2", "gpt2")
    expected = leaves(path)
    tensors = tensors_in(path)
    (path / "model.safetensors").unlink()
    weight_map = {}
    for i, name in enumerate(tensors):
        weight_map[name] = f"part{i % 2}.safetensors"
    for file in set(weight_map.values()):
        part = {name: tensors[name] for name in tensors if weight_map[name] == file}
        save_file(part, path / file)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert huggingface.read(path)[0].d_model == 8
    assert_equal(leaves(path), expected)
    index.write_text(json.dumps({"weight_map": [1]}))
    with pytest.raises(UserError, match=r"index\.json: cannot be understood"):
        huggingface.read(path)


def test_files_of_a_model_without_its_head(tmp_path):
    path = write(tmp_path / "gpt2", "gpt2")
    expected = leaves(path)
    rename(path, {name: name.removeprefix("transformer.") for name in tensors_in(path)})
    assert "wte.weight" in tensors_in(path)
    assert_equal(leaves(path), expected)


def test_files_of_old_versions(tmp_path):
    """They call the parameters of norms gamma and beta."""
    path = write(tmp_path / "bert", "bert")
    expected = leaves(path)
    names = {}
    for name in tensors_in(path):
        old_name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        names[name] = old_name.replace("LayerNorm.bias", "LayerNorm.beta")
    rename(path, names)
    assert "bert.embeddings.LayerNorm.beta" in tensors_in(path)
    assert_equal(leaves(path), expected)


def test_copies_of_tied_tensors_and_buffers_are_passed_over(tmp_path):
    path = write(tmp_path / "gpt2", "gpt2")
    expected = leaves(path)
    table = tensors_in(path)["transformer.wte.weight"]
    buffer = np.ones((1, 1, 16, 16), np.uint8)
    add(path, {"lm_head.weight": table, "transformer.h.0.attn.bias": buffer})
    lines: list[str] = []
    with messages_to(lines.append):
        assert_equal(leaves(path), expected)
    assert not lines
    add(path, {"lm_head.weight": table + 1})
    with pytest.raises(UserError, match=r"lm_head\.weight does not belong to the model"):
        huggingface.read(path)


def test_t5_is_tied_by_its_tensors(tmp_path):
    path = write(tmp_path / "t5", "t5")
    expected = leaves(path)
    assert huggingface.read(path)[0].tie_embeddings
    table = tensors_in(path)["shared.weight"]
    add(path, {"lm_head.weight": table, "encoder.embed_tokens.weight": table})
    assert huggingface.read(path)[0].tie_embeddings
    assert_equal(leaves(path), expected)
    add(path, {"lm_head.weight": table + 1})
    assert not huggingface.read(path)[0].tie_embeddings
    assert (leaves(path)["head/output"].T[:530] == table + 1).all()


def test_a_pooler_that_no_head_reads_is_left_out_aloud(tmp_path):
    path = write(tmp_path / "bert", "bert")
    expected = leaves(path)
    add(path, {"bert.pooler.dense.bias": np.zeros(8, np.float32)})
    lines: list[str] = []
    with messages_to(lines.append):
        assert_equal(leaves(path), expected)
    assert lines == ["left out: bert.pooler.dense.bias, a pooler that no head reads"]


def test_the_label_head_of_bert_is_known_by_its_tensors(tmp_path):
    path = write(tmp_path / "bert", "bert with two heads")
    assert huggingface.read(path)[0].num_classes == 2
    classifier = ["bert.pooler.dense", "cls.seq_relationship"]
    rename(path, {f"{name}.{kind}": None for name in classifier for kind in ("weight", "bias")})
    assert huggingface.read(path)[0].num_classes == 0


def test_only_dtypes_of_floating_point_are_read(tmp_path):
    path = write(tmp_path / "gpt2", "gpt2")
    add(path, {"transformer.ln_f.bias": np.zeros(8, np.float64)})
    with pytest.raises(UserError, match=r"ln_f\.bias is F64, expected F32, F16 or BF16"):
        huggingface.read(path)


def test_a_header_that_lies_is_refused_before_an_array_is_made(tmp_path):
    path = write(tmp_path / "gpt2", "gpt2")
    content = (path / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    header["transformer.wte.weight"]["shape"] = [1 << 40, 8]
    new_header = json.dumps(header).encode()
    size = struct.pack("<Q", len(new_header))
    (path / "model.safetensors").write_bytes(size + new_header + content[8 + length :])
    with pytest.raises(UserError, match="no usable safetensors"):
        huggingface.read(path)


def test_a_config_without_a_known_model_type(tmp_path):
    path = write(tmp_path / "gpt2", "gpt2")
    for model_type in ("mamba", None, ["gpt2"]):
        (path / "config.json").write_text(json.dumps({"model_type": model_type}))
        with pytest.raises(UserError, match="expected one of bert, roberta, gpt2, t5, llama"):
            huggingface.read(path)


# Writing.


def refused(path: Path, code: int, **changes) -> str:
    """The message with which a GPT-2 cannot be written."""
    model = make_dimensions("gpt2", **changes)
    with pytest.raises(UserError) as caught:
        huggingface.write(path, model, make_params(model), Tokenizer())
    assert caught.value.code == code
    return str(caught.value)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "exists; name another directory" in refused(tmp_path / "full", USAGE)
    (tmp_path / "file").touch()
    assert "exists; name another directory" in refused(tmp_path / "file", USAGE)
    (tmp_path / "x.partial").mkdir()
    (tmp_path / "x.partial/mine").touch()
    assert "x.partial has mine, which this export does not write" in refused(tmp_path / "x", USAGE)
    assert (tmp_path / "x.partial/mine").exists()
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", "gpt2")
    assert huggingface.read(tmp_path / "empty")[0].d_model == 8


WRITES = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from t5x_lite.interop.huggingface import write_directory
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
tensors = {"weight": np.zeros(10_000, "float32")}
write_directory(Path(sys.argv[1]), {"config.json": b"{}"}, tensors, "model.safetensors")
"""


def test_what_a_killed_export_has_left_is_written_again(tmp_path):
    """The system kills it in the middle of the largest file."""
    process = subprocess.run([sys.executable, "-c", WRITES, tmp_path / "x"], cwd=ROOT)
    assert process.returncode == -signal.SIGXFSZ
    assert [path.name for path in tmp_path.iterdir()] == ["x.partial"]
    tensors = {"weight": np.zeros(10_000, "float32")}
    arguments = (tmp_path / "x", {"config.json": b"{}"}, tensors, "model.safetensors")
    with locks.only_writer(tmp_path / "x.partial", "another"), pytest.raises(UserError) as caught:
        huggingface.write_directory(*arguments)
    assert "another run is going on there" in str(caught.value)
    huggingface.write_directory(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    files = {path.name: path for path in (tmp_path / "x").iterdir()}
    assert files.keys() == {"config.json", "model.safetensors", "manifest.json"}
    assert len({path.stat().st_mode for path in files.values()}) == 1
    assert load_file(files["model.safetensors"])["weight"].size == 10_000


def test_models_that_cannot_be_written(tmp_path):
    path = tmp_path / "x"
    assert "gpt2 needs model.positions='learned'" in refused(path, BAD_CONFIG, positions="alibi")
    assert "expected none, or 2 for sentence pairs" in refused(path, BAD_CONFIG, num_classes=3)
    assert "has no place for classifier/" in refused(path, BAD_CONFIG, num_classes=2)
    assert not list(tmp_path.iterdir())


def test_an_export_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full_disk)
    with pytest.raises(UserError, match=r"cannot be written .*No space left"):
        write(tmp_path / "x", "gpt2")
    assert not list(tmp_path.iterdir())


def test_the_class_that_reads_it(tmp_path):
    for name, class_name in {
        "bert": "BertForMaskedLM",
        "bert with two heads": "BertForPreTraining",
        "t5 1.1": "T5ForConditionalGeneration",
    }.items():
        model = make_dimensions(name)
        path = tmp_path / name
        assert huggingface.write(path, model, make_params(model), Tokenizer()) == class_name
        config = json.loads((path / "config.json").read_text())
        assert config["architectures"] == [class_name]


def test_a_model_with_one_token_type_reads_all_texts_as_that():
    """RoBERTa: of a second text, too."""
    model = make_dimensions("roberta")
    params = make_params(model)
    row = {
        "encoder_tokens": jnp.arange(6)[None] + 5,
        "encoder_segments": jnp.ones((1, 6), jnp.int32),
        "encoder_positions": jnp.arange(6)[None],
    }
    expected = apply(model, params, row).hidden_states
    found = apply(model, params, row | {"encoder_types": jnp.ones((1, 6), jnp.int32)})
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found.hidden_states, expected)


HEADS = {
    "class": {"num_classes": 3},
    "number": {"num_classes": 1},
    "choice": {"num_classes": 1},
    "span": {"token_classes": 2},
}


def task_model(name, head, **settings):
    dimensions = dataclasses.replace(make_dimensions(name), lm_head=False, **HEADS[head])
    return dataclasses.replace(dimensions, **settings)


@pytest.mark.parametrize(
    ("name", "head", "class_name", "tensors"),
    [
        ("bert", "class", "BertForSequenceClassification", {"classifier.weight": (3, 8)}),
        ("bert", "number", "BertForSequenceClassification", {"classifier.bias": (1,)}),
        ("bert", "choice", "BertForMultipleChoice", {"bert.pooler.dense.weight": (8, 8)}),
        ("bert", "span", "BertForQuestionAnswering", {"qa_outputs.weight": (2, 8)}),
        (
            "roberta",
            "class",
            "RobertaForSequenceClassification",
            {"classifier.dense.bias": (8,), "classifier.out_proj.weight": (3, 8)},
        ),
    ],
)
def test_models_of_tasks(tmp_path, name, head, class_name, tensors):
    model = task_model(name, head)
    labels = ("a", "b", "c") if head == "class" else ()
    params = make_params(model)
    written = huggingface.write(
        tmp_path / "x", model, params, Tokenizer(), task_head=TaskHead(head, labels)
    )
    assert written == class_name
    found = tensors_in(tmp_path / "x")
    assert {name: found[name].shape for name in tensors} == tensors
    config = json.loads((tmp_path / "x/config.json").read_text())
    assert config["architectures"] == [class_name]
    if head == "class":
        assert config["id2label"] == {"0": "a", "1": "b", "2": "c"}
        assert config["label2id"] == {"a": 0, "b": 1, "c": 2}
        # Classes keep their order, unlike the two labels of BERT's sentence pairs.
        kernel = np.asarray(flatten_dict(params, sep="/")["classifier/output/kernel"])
        np.testing.assert_array_equal(found[next(reversed(tensors))], kernel.T)


def test_updates_of_modules_that_lie_side_by_side(tmp_path):
    """GPT-2's queries, keys and values are one module: so are their updates."""
    targets = ("query", "value", "wi")
    model = dataclasses.replace(
        make_dimensions("gpt2"), lora_rank=2, lora_alpha=6.0, lora_targets=targets
    )
    params = make_params(model)
    assert peft.write(tmp_path / "x", model, params) == "GPT2LMHeadModel"
    config = json.loads((tmp_path / "x/adapter_config.json").read_text())
    (module,) = config["rank_pattern"]
    assert re.fullmatch(module, "transformer.h.1.attn.c_attn")
    assert config["rank_pattern"][module] == 4
    assert config["alpha_pattern"][module] == 12  # the same alpha / rank
    assert re.fullmatch(config["target_modules"], "transformer.h.0.mlp.c_fc")

    tensors = load_file(tmp_path / "x/adapter_model.safetensors")
    of_module = "base_model.model.transformer.h.1.attn.c_attn"
    update = tensors[f"{of_module}.lora_B.weight"] @ tensors[f"{of_module}.lora_A.weight"]
    leaves = flatten_dict(params, sep="/")
    expected = np.zeros((24, 8), np.float32)
    for part, name in ((0, "query"), (2, "value")):
        a, b = (leaves[f"decoder/layers/attention/{name}/lora_{factor}"][1] for factor in "ab")
        expected[part * 8 : part * 8 + 8] = np.asarray(a @ b).T
    np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["cohere", "gpt_neox", "modernbert", "bart", "qwen2"])
def test_updates_are_those_that_merging_adds(tmp_path, name):
    """Whatever lies side by side, by head or in pairs."""
    targets = ("query", "key", "value", "out")
    plain = make_dimensions(name)
    model = dataclasses.replace(plain, lora_rank=2, lora_alpha=6.0, lora_targets=targets)
    params = make_params(model)
    leaves = flatten_dict(params)
    base = unflatten_dict({path: leaf for path, leaf in leaves.items() if "lora" not in path[-1]})
    huggingface.write(tmp_path / "base", plain, base, Tokenizer(), model_type=name)
    _, merged = merge_low_rank(model, params)
    huggingface.write(tmp_path / "merged", plain, merged, Tokenizer(), model_type=name)
    peft.write(tmp_path / "adapter", model, params, model_type=name)
    before, after = tensors_in(tmp_path / "base"), tensors_in(tmp_path / "merged")
    updates = load_file(tmp_path / "adapter/adapter_model.safetensors")
    modules = {key.rpartition(".lora_")[0] for key in updates}
    assert len(modules) >= 2 * plain.num_layers
    for module in modules:
        a, b = (updates[f"{module}.lora_{factor}.weight"] for factor in "AB")
        tensor = module.removeprefix("base_model.model.") + ".weight"
        expected = after[tensor] - before[tensor]
        np.testing.assert_allclose(3.0 * b @ a, expected, rtol=1e-4, atol=1e-4)


def test_updates_of_a_head_are_added_to_it(tmp_path):
    """A head is written whole, beside the updates of the body."""
    model = task_model("bert", "class", lora_rank=2, lora_targets=("query", "pooler"))
    params = make_params(model)
    peft.write(tmp_path / "x", model, params, task_head=TaskHead("class", ("a", "b", "c")))
    tensors = load_file(tmp_path / "x/adapter_model.safetensors")
    assert not any("pooler" in name and "lora" in name for name in tensors)
    _, merged = merge_low_rank(model, params)
    kernel = np.asarray(flatten_dict(merged, sep="/")["classifier/pooler/kernel"])
    written = tensors["base_model.model.bert.pooler.dense.weight"]
    np.testing.assert_allclose(written, kernel.T, rtol=1e-6)


def test_models_of_tasks_that_cannot_be_written(tmp_path):
    model = dataclasses.replace(make_dimensions("gpt2"), num_classes=3)
    with pytest.raises(UserError, match="has no class with the head class"):
        huggingface.write(
            tmp_path / "x", model, make_params(model), Tokenizer(), task_head=TaskHead("class")
        )
    with pytest.raises(UserError, match="--adapter: this model has no LoRA updates"):
        peft.write(tmp_path / "x", model, make_params(model))
    assert not list(tmp_path.iterdir())


def test_no_directory_of_a_model(tmp_path):
    with pytest.raises(UserError, match="expected the directory of a model") as caught:
        huggingface.read(tmp_path)
    assert caught.value.code == NO_FILE
