"""What is written is read again; files from strangers are data. tests/peers/ compares with `transformers` itself."""

import json
import struct

import jax
import numpy as np
import pytest
from conftest import run, sentences
from flax import linen as nn
from flax.traverse_util import flatten_dict

from t5x_lite.config import Model
from t5x_lite.data.tokenizer import Tokenizer
from t5x_lite.errors import Refusal
from t5x_lite.interop import huggingface
from t5x_lite.model.transformer import initialise

pytest.importorskip("safetensors")
SMALL = {"layers": 2, "width": 8, "heads": 2, "ff_width": 12, "vocab_size": 530, "max_length": 16}
BERT = {"architecture": "encoder", "norm_position": "post", "embedding_norm": True, "mlm_head": True, "token_types": 2}
T5 = {"architecture": "encoder_decoder", "norm": "rms_norm", "bias": False, "positions": "relative"}
T5 |= {"scale_attention": False}
MODELS = {
    "bert": BERT,
    "bert with two heads": {**BERT, "classes": 2, "norm_epsilon": 1e-12},
    "roberta": {**BERT, "position_offset": 2, "token_types": 1},
    "gpt2": {"activation": "gelu_tanh"},
    "t5": {**T5, "activation": "relu", "scale_logits": True, "decoder_layers": 1, "max_length": 0},
    "t5 1.1": {**T5, "activation": "gelu_tanh", "gated": True, "tied": False, "head_size": 6, "max_length": 0},
    "llama": {
        **{"norm": "rms_norm", "bias": False, "positions": "rotary", "activation": "silu", "gated": True},
        **{"kv_heads": 1, "tied": False},
    },
}


def made(name: str) -> tuple[Model, dict]:
    """A model with random parameters, rows of padding zero."""
    model = Model(**{**SMALL, **MODELS[name]})
    params = nn.meta.unbox(initialise(model, jax.random.key(0)))["params"]
    keys = iter(jax.random.split(jax.random.key(1), 100))
    return model, jax.tree.map(lambda x: np.array(jax.random.normal(next(keys), x.shape)), params)


@pytest.fixture
def gpt2(tmp_path):
    model, params = made("gpt2")
    huggingface.write(tmp_path / "gpt2", model, params, Tokenizer())
    return tmp_path / "gpt2"


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float32") for name in MODELS), ("gpt2", "bfloat16")])
def test_what_is_written_is_read_again(tmp_path, name, dtype):
    model, params = made(name)
    huggingface.write(tmp_path / "a", model, params, Tokenizer(), dtype)
    written = json.loads((tmp_path / "a" / "config.json").read_text())
    begins = Tokenizer().vocabulary.start if model.architecture == "encoder_decoder" else None
    assert written.get("decoder_start_token_id") == begins
    again, read = huggingface.read(tmp_path / "a")
    huggingface.write(tmp_path / "b", again, read, Tokenizer(), dtype)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    before, after = flatten_dict(params, sep="/"), flatten_dict(read, sep="/")
    assert before.keys() == after.keys()
    for key, value in after.items():
        there = value != 0  # rows of padding are not written
        expected = before[key].astype(huggingface.DTYPES[dtype]).astype(np.float32)
        assert (value[there] == expected[there]).all()
        assert there.mean() > 0.7


def rewrite(path, change) -> None:
    """The header of a safetensors file, changed as JSON."""
    content = (path / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    change(header)
    new = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])


def config(path, **changes) -> None:
    found = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(found | changes))


WTE = "transformer.wte.weight"
BROKEN = {
    "has shape": lambda path: config(path, n_embd=6),
    "is missing": lambda path: config(path, n_layer=3),
    "too few for the 10000000 layers": lambda path: config(path, n_layer=10**7),
    "belongs to nothing": lambda path: config(path, n_layer=1),
    "expected one of bert": lambda path: config(path, model_type="mamba"),
    "expected int": lambda path: config(path, n_embd="wide"),
    "expected at least 1": lambda path: config(path, n_layer=0),
    "does not divide": lambda path: config(path, n_head=3),
    "read with False alone": lambda path: config(path, scale_attn_by_inverse_layer_idx=True),
    "activation": lambda path: config(path, activation_function="exp"),
    "no usable safetensors": lambda path: (path / "model.safetensors").write_bytes(b"\0" * 50),
    "no usable safetensors ": lambda path: rewrite(path, lambda h: h[WTE].update(shape=[1 << 40, 8])),
    "pickled": lambda path: (path / "model.safetensors").rename(path / "pytorch_model.bin"),
    "expected one beside it": lambda path: (path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "../secret"}}'
    ),
    "cannot be read": lambda path: (path / "config.json").write_text("{"),
    "no such file": lambda path: (path / "config.json").unlink(),
    "has none of": lambda path: (path / "tokenizer.json").unlink(),
}


@pytest.mark.parametrize("message", BROKEN)
def test_files_that_are_broken(gpt2, tmp_path, message):
    BROKEN[message](gpt2)
    code = 66 if message in ("pickled", "cannot be read", "no such file", "has none of") else None
    with pytest.raises(AssertionError, match="exit code") as caught:
        run("import", gpt2, f"--workdir={tmp_path / 'run'}", code=-1)
    assert message.strip() in str(caught.value)
    assert code is None or f"exit code {code}" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_several_files_with_an_index(gpt2):
    model, params = made("gpt2")
    (gpt2 / "model.safetensors").rename(gpt2 / "part.safetensors")
    (gpt2 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"any": "part.safetensors"}}))
    again, read = huggingface.read(gpt2)
    assert again.width == model.width
    assert (read["embedding"][:530] == params["embedding"][:530]).all()


def test_models_of_no_family_are_refused_by_what_differs(tmp_path):
    model, params = made("gpt2")
    other = Model(**{**SMALL, "positions": "alibi"})
    with pytest.raises(Refusal, match=r"gpt2 needs .*model.positions='learned' \(is 'alibi'\)"):
        huggingface.write(tmp_path / "x", other, params, Tokenizer())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(Refusal, match="exists"):
        huggingface.write(tmp_path / "full", model, params, Tokenizer())


def test_a_model_is_brought_trained_on_and_taken(tmp_path, gpt2):
    """With the same commands as any run; its own directory stays as it is."""
    text, theirs, mine = tmp_path / "text.txt", tmp_path / "theirs", tmp_path / "mine"
    text.write_text(sentences(100))
    out, _ = run("import", "--from=hf", gpt2, f"--workdir={theirs}")
    assert "imported" in out
    assert run("generate", f"--workdir={theirs}", "the cat", "--max-new=3")[0].startswith("the cat")
    more = [f"--config.data.source={text}", "--config.data.document=block", "--config.data.batch_size=4"]
    more += ["--config.training.steps=2", "--config.training.log_every=1"]
    run("train", f"--config={theirs}", f"--workdir={mine}", *more)
    before, after = (huggingface_params(path) for path in (theirs, mine))
    change = max(np.abs(a - b).max() for a, b in zip(before, after, strict=True))
    assert 0 < change < 1e-3  # a few steps away from where it started
    run("export", "--to=hf", f"--workdir={mine}", tmp_path / "out")
    assert huggingface.read(tmp_path / "out")[0].width == 8
    _, err = run("train", f"--config={theirs}", f"--workdir={theirs}", *more, code=2)
    assert "name another" in err
    _, err = run("train", f"--config={theirs}", f"--workdir={tmp_path / 'x'}", *more, "--config.model.heads=1", code=78)
    assert "model.heads" in err
    other = "--config.data.tokenizer=sentencepiece(vocab_size=530)"
    _, err = run("train", f"--config={theirs}", f"--workdir={tmp_path / 'x'}", *more, other, code=78)
    assert "its ids are not those" in err
    assert not (tmp_path / "x").exists()
    _, err = run("train", f"--config={gpt2}", f"--workdir={tmp_path / 'x'}", code=78)
    assert "import it" in err


def huggingface_params(workdir):
    from t5x_lite.training import rundir

    return jax.tree.leaves(rundir.load(workdir).params)
