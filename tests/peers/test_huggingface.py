"""Models of `transformers` with random weights: read, computed, written, and read by them again."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("transformers", reason="make test-peers has it")
pytest.importorskip("torch")

import torch
import transformers
from conftest import run, sentences
from peer_models import (
    PEERS,
    TOLERANCE,
    Case,
    make_peer,
    our_logits,
    peer_logits,
    random_texts,
    read_peer,
    small_tokenizer,
)
from safetensors.numpy import load_file

from t5x_lite.inference.score import pseudo_log_likelihoods, score
from t5x_lite.interop import huggingface
from t5x_lite.interop.tokenizers import pretrained_files
from t5x_lite.model.dropout import Noise
from t5x_lite.model.heads import SequenceLabelHead
from t5x_lite.model.transformer import Transformer
from t5x_lite.training import loaded_model


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


@pytest.fixture(scope="module", params=PEERS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def case(name, tmp_path_factory, tokenizer):
    """A model in float32, every weight of it random."""
    path = tmp_path_factory.mktemp("peer")
    model = make_peer(PEERS[name], tokenizer.vocabulary.size, path)
    return Case(model, path, read_peer(path, tokenizer))


# Logits.


def test_logits_of_padded_and_of_packed_rows(case):
    size = case.loaded.tokenizer.vocabulary.size
    inputs = random_texts((13, 7, 9, 12), size)
    targets = random_texts((11, 9, 6, 13), size, seed=1)
    expected = peer_logits(case, inputs, targets)

    padded = our_logits(case.loaded, inputs, targets)
    for ours, theirs in zip(padded, expected, strict=True):
        assert np.abs(ours[: len(theirs)] - theirs).max() < TOLERANCE
        assert np.abs(theirs).max() > 0.1  # they are not all about zero

    # Two texts in each row.
    packed = our_logits(case.loaded, inputs, targets, np.array([0, 0, 1, 1]), rows=2)
    for row in range(2):
        first, second = expected[2 * row], expected[2 * row + 1]
        both = np.concatenate([first, second])
        assert np.abs(packed[row, : len(both)] - both).max() < TOLERANCE


def test_logits_of_the_next_sentence(case, name):
    if name != "bert with two heads":
        pytest.skip("it has one head")
    ids = random_texts((13,), case.loaded.tokenizer.vocabulary.size)[0]
    with torch.no_grad():
        theirs = case.peer(torch.tensor(ids)[None]).seq_relationship_logits[0].numpy()

    row = {
        "encoder_tokens": jnp.asarray(ids)[None],
        "encoder_segments": jnp.ones((1, 13), jnp.int32),
        "encoder_positions": jnp.arange(13)[None],
    }
    model, params = case.loaded.model, case.loaded.params
    hidden_states = Transformer(model).apply({"params": params}, row).hidden_states
    head = SequenceLabelHead(model)
    noise = Noise(jnp.arange(1))
    ours = head.apply({"params": params["classifier"]}, hidden_states[:, 0], noise)[0]
    # For us label 1 says that the sentence is the next, for them label 0.
    assert np.abs(ours[::-1] - theirs).max() < TOLERANCE


# Files.

# What a config.json says of the tokenizer, or in more than one way.
FREE_SETTINGS = {
    "dtype",
    "torch_dtype",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "n_inner",
    "tie_word_embeddings",
}


# Of ESM's head for contacts and its angles, and BART's bias of zeros.
LEFT_OUT = (
    "esm.rotary_embeddings.inv_freq",
    "esm.contact_head.regression.weight",
    "esm.contact_head.regression.bias",
    "final_logits_bias",
)


def test_import_and_export_are_the_identity(case, tmp_path):
    loaded = case.loaded
    out = tmp_path / "out"
    family = loaded.conventions.model_type
    class_name = huggingface.write(
        out, loaded.model, loaded.params, loaded.tokenizer, start=loaded.start, model_type=family
    )

    # The files.
    before = load_file(case.path / "model.safetensors")
    # ESM is saved with old names, and with a buffer.
    for old, new in huggingface._RENAMED.items():
        before = {name.replace(old, new): tensor for name, tensor in before.items()}
    before = {name: tensor for name, tensor in before.items() if "inv_freq" not in name}
    after = load_file(out / "model.safetensors")
    assert before.keys() - set(LEFT_OUT) == after.keys()
    # Gemma's norms are stored less 1, which rounds.
    error = 2e-7 if family.startswith("gemma") else 0
    for name in after:
        assert np.abs(before[name] - after[name]).max() <= error
    config = json.loads((case.path / "config.json").read_text())
    for key, value in json.loads((out / "config.json").read_text()).items():
        if config.get(key) is not None and key not in FREE_SETTINGS:
            assert value == config[key], key

    # The model that is made from them.
    peer_class = getattr(transformers, class_name)
    reread, report = peer_class.from_pretrained(out, output_loading_info=True)
    assert set(report["missing_keys"]) <= set(LEFT_OUT)
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    weights = reread.state_dict()
    assert case.peer.state_dict().keys() == weights.keys()
    for name, weight in case.peer.state_dict().items():
        if name not in LEFT_OUT:
            assert (weight - weights[name]).abs().max() <= error, name

    # What it computes: where weights lie in memory may change the last bit.
    ids = torch.tensor(random_texts((9,), loaded.tokenizer.vocabulary.size)[0])[None]
    decoder_ids = {"decoder_input_ids": ids} if loaded.model.is_encoder_decoder else {}
    with torch.no_grad():
        expected = case.peer(ids, **decoder_ids)
        outputs = reread.eval()(ids, **decoder_ids)
    compared = [key for key, value in expected.items() if torch.is_tensor(value)]
    assert compared
    for key in compared:
        assert (expected[key] - outputs[key]).abs().max() < 1e-5, key


def test_the_tokenizer_that_is_written_makes_the_same_ids(tokenizer, tmp_path):
    for name, content in pretrained_files(tokenizer, "decoder").items():
        (tmp_path / name).write_bytes(content)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("the cat sees the dog.", " two  blanks\nand a line", "naïve 漢字 😀", ""):
        ids = tokenizer.encode(text).tolist()
        assert loaded(text, add_special_tokens=False)["input_ids"] == ids
        assert loaded.decode(ids) == text
        assert loaded(text)["input_ids"] == [tokenizer.vocabulary.bos, *ids]
    assert loaded.eos_token_id == tokenizer.vocabulary.eos
    assert loaded.convert_tokens_to_ids("<extra_id_3>") == tokenizer.vocabulary.sentinel(3)


@pytest.fixture(scope="module")
def babylm(tmp_path_factory):
    """A function that trains a small model of configs/babylm.py for a few steps, and exports it."""

    def train(family, *options):
        path = tmp_path_factory.mktemp(family)
        (path / "text.txt").write_text(sentences(300))
        run(
            "train",
            f"--config=babylm:{family}",
            f"--workdir={path / 'run'}",
            f"--config.data.source={path / 'text.txt'}",
            "--config.data.document=block",
            "--config.data.tokenizer=bytes",
            "--config.data.batch_size=8",
            "--config.model.num_layers=2",
            "--config.model.d_model=64",
            "--config.model.d_ff=96",
            "--config.training.steps=20",
            "--config.training.eval_every=0",
            "--config.training.keep_at=()",
        )
        run("export", *options, f"--workdir={path / 'run'}", path / "out")
        tokenizer = transformers.AutoTokenizer.from_pretrained(path / "out")
        return loaded_model.load(path / "run"), path / "out", tokenizer

    return train


def log_probability(logits, token):
    return float(torch.log_softmax(logits, -1)[token])


# As BabyLM's pipeline does with each of its backends.


def test_babylm_causal(babylm):
    loaded, path, tokenizer = babylm("gpt_bert")
    model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    ids = torch.tensor(tokenizer("the cat sees")["input_ids"])
    with torch.no_grad():
        logits = model(ids[None]).logits[0]
    total = sum(log_probability(logits[i - 1], ids[i]) for i in range(1, len(ids)))
    (found,) = score(loaded, ["the cat sees"])
    assert found.nats == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize(
    ("family", "options", "shift", "last"), [("gpt_bert", ("--masked",), 1, 0), ("bert", (), 0, 1)]
)
def test_babylm_mntp_and_mlm(babylm, family, options, shift, last):
    """One token is masked at a time. A decoder predicts it at the position before it."""
    loaded, path, tokenizer = babylm(family, *options)
    model = transformers.AutoModelForMaskedLM.from_pretrained(path).eval()
    ids = torch.tensor(tokenizer("the cat sees")["input_ids"])
    total = 0.0
    for place in range(1, len(ids) - last):
        masked = ids.clone()
        masked[place] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(masked[None]).logits[0, place - shift]
        total += log_probability(logits, ids[place])
    (found,) = pseudo_log_likelihoods(loaded, ["the cat sees"])
    assert found.nats == pytest.approx(total, abs=1e-3)


def test_babylm_enc_dec_mask_and_enc_dec_prefix(babylm):
    """A mask stands for a token of the text, or for the text after a prefix."""
    loaded, path, tokenizer = babylm("t5")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    mask, starts = tokenizer.mask_token_id, [tokenizer.bos_token_id, tokenizer.mask_token_id]
    ids = torch.tensor(tokenizer("the cat sees")["input_ids"])  # and EOS
    total = 0.0
    for place in range(len(ids) - 1):
        masked = ids.clone()
        masked[place] = mask
        with torch.no_grad():
            outputs = model(masked[None], decoder_input_ids=torch.tensor([starts]))
        total += log_probability(outputs.logits[0, -1], ids[place])
    (found,) = score(loaded, ["the cat sees"])
    assert found.kind == "pseudo_log_likelihood"
    assert found.nats == pytest.approx(total, abs=1e-3)

    prefix, text = tokenizer(["the cat", " sees"], add_special_tokens=False)["input_ids"]
    inputs = torch.tensor([[*prefix, mask, tokenizer.eos_token_id]])
    with torch.no_grad():
        outputs = model(inputs, decoder_input_ids=torch.tensor([[*starts, *text[:-1]]]))
    total = sum(map(log_probability, outputs.logits[0, 1:], text))
    (found,) = score(loaded, [" sees"], context="the cat")
    assert found.nats == pytest.approx(total, abs=1e-3)


def test_a_run_of_ours_goes_on_the_same_way_there(tmp_path):
    """Trained here, exported, loaded there: both continue a text in the same way."""
    text = tmp_path / "text.txt"
    text.write_text(sentences(300))
    run(
        "train",
        "--config=gpt2_small",
        f"--workdir={tmp_path / 'run'}",
        f"--config.data.source={text}",
        "--config.data.document=block",
        "--config.data.tokenizer=bytes",
        "--config.data.batch_size=4",
        "--config.data.lengths.sequence_length=64",
        "--config.model.num_layers=2",
        "--config.model.d_model=32",
        "--config.model.num_heads=2",
        "--config.model.max_length=64",
        "--config.model.vocab_size=0",
        "--config.training.steps=20",
    )
    run("export", f"--workdir={tmp_path / 'run'}", tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    prompt = tokenizer("the cat sees", return_tensors="pt")
    with torch.no_grad():
        ids = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0]
    workdir = f"--workdir={tmp_path / 'run'}"
    ours, _ = run("generate", workdir, "the cat sees", "--max-new-tokens=20")
    assert tokenizer.decode(ids) == "<s>" + ours.removesuffix("\n")
