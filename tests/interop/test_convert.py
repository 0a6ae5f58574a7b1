"""`import` and `export`, as a user has them."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import run, run_apart, sentences, with_devices
from inference.untrained import full_logits, logits_of, untrained
from interop_cases import change_config, make_dimensions, make_params

from t5x_lite import locks
from t5x_lite.config import Model
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import UserError
from t5x_lite.inference import generate
from t5x_lite.inference.embed import embed
from t5x_lite.inference.generate import generate_ids, search_ids
from t5x_lite.inference.masked_rows import masked_rows
from t5x_lite.inference.score import target_log_probabilities
from t5x_lite.interop import convert, huggingface
from t5x_lite.progress import messages_to
from t5x_lite.training import loaded_model, run_directory, text_conventions

pytest.importorskip("safetensors")
from safetensors.numpy import load_file, save_file

WEIGHTS = "model.safetensors"


def write(path: Path, name: str) -> Path:
    """A model in the files of Hugging Face, which may be changed: it has no manifest."""
    model = make_dimensions(name)
    huggingface.write(path, model, make_params(model), Tokenizer())
    (path / "manifest.json").unlink()
    return path


@pytest.fixture
def gpt2(tmp_path):
    return write(tmp_path / "gpt2", "gpt2")


def lie_about_a_shape(path: Path) -> None:
    tensors = load_file(path / WEIGHTS)
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"][:, :6]
    save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path / WEIGHTS
    )


def change_a_tensor(path: Path, value: float) -> None:
    tensors = load_file(path / WEIGHTS)
    tensors["transformer.h.1.ln_1.bias"][3] = value
    save_file(tensors, path / WEIGHTS)


def point_outside(path: Path) -> None:
    (path / WEIGHTS).rename(path / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"a": "../secret"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


# Message → what breaks the files.
BROKEN = {
    "has shape": lambda path: change_config(path, n_embd=6),
    "has shape [530, 6]": lie_about_a_shape,
    "is missing": lambda path: change_config(path, n_layer=3),
    "too few for the 10000000 layers": lambda path: change_config(path, n_layer=10**7),
    "does not belong to the model": lambda path: change_config(path, n_layer=1),
    "expected one of bert": lambda path: change_config(path, model_type="mamba"),
    "expected a whole number": lambda path: change_config(path, n_embd="wide"),
    "expected at least 1": lambda path: change_config(path, n_layer=0),
    "does not divide": lambda path: change_config(path, n_head=3),
    "only read with False": lambda path: change_config(path, scale_attn_by_inverse_layer_idx=True),
    "activation": lambda path: change_config(path, activation_function="exp"),
    "no usable safetensors": lambda path: (path / WEIGHTS).write_bytes(b"\0" * 50),
    "pickled": lambda path: (path / WEIGHTS).rename(path / "pytorch_model.bin"),
    "expected one in the same directory": point_outside,
    "not finite": lambda path: change_a_tensor(path, np.nan),
    "unknown for models of this kind": lambda path: change_config(path, sliding_window=4096),
    "cannot be read": lambda path: (path / "config.json").write_text("{"),
    "no such file": lambda path: (path / "config.json").unlink(),
    "has none of": lambda path: (path / "tokenizer.json").unlink(),
}
NO_USABLE_FILE = ("pickled", "cannot be read", "no such file", "has none of")


@pytest.mark.parametrize("message", BROKEN)
def test_files_that_are_broken(gpt2, tmp_path, message):
    BROKEN[message](gpt2)
    with pytest.raises(AssertionError, match="exit code") as caught:
        run("import", gpt2, f"--workdir={tmp_path / 'run'}", code=-1)
    assert message in str(caught.value)
    if message in NO_USABLE_FILE:
        assert "exit code 66" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_model_is_imported_trained_and_exported(tmp_path, gpt2):
    """With the same commands as any run; the imported directory stays as it is."""
    text = tmp_path / "text.txt"
    text.write_text(sentences(100))
    imported = tmp_path / "imported"
    trained = tmp_path / "trained"
    out, _ = run("import", "--from=hf", gpt2, f"--workdir={imported}")
    assert "imported" in out
    out, _ = run("generate", f"--workdir={imported}", "the cat", "--max-new-tokens=3")
    assert out.startswith("the cat")

    few_steps = [
        f"--config.data.source={text}",
        "--config.data.document=block",
        "--config.data.batch_size=4",
        "--config.training.steps=2",
        "--config.training.log_every=1",
    ]
    run("train", f"--config={imported}", f"--workdir={trained}", *few_steps)
    before = jax.tree.leaves(loaded_model.load(imported).params)
    after = jax.tree.leaves(loaded_model.load(trained).params)
    change = max(np.abs(a - b).max() for a, b in zip(before, after, strict=True))
    assert 0 < change < 1e-3  # a few steps away from where it started

    out, _ = run("export", "--to=hf", f"--workdir={trained}", tmp_path / "out")
    assert out.strip() == f"exported: {tmp_path / 'out'}, for GPT2LMHeadModel.from_pretrained"
    exported, params = huggingface.read(tmp_path / "out")
    assert exported.d_model == 8
    for leaf, exported_leaf in zip(after, jax.tree.leaves(params), strict=True):
        rows = exported_leaf != 0  # rows of padding are not written
        assert (np.asarray(leaf)[rows] == exported_leaf[rows]).all()


def test_an_import_into_what_another_writes_or_has_left(tmp_path, gpt2):
    workdir = tmp_path / "run"
    command = ("import", "--from=hf", gpt2, f"--workdir={workdir}")
    workdir.mkdir()
    with locks.only_writer(workdir, "another"):
        (workdir / "config.json.unfinished").touch()
        (workdir / "tokenizer").mkdir()
        _, err = run(*command, code=2)
        assert "another run is going on there" in err
        assert (workdir / "tokenizer").is_dir()
    (workdir / "mine.txt").touch()
    _, err = run(*command, code=2)
    assert "exists; name another directory" in err
    assert (workdir / "tokenizer").is_dir()
    (workdir / "mine.txt").unlink()
    run(*command)  # another has left it
    run("verify", workdir)
    _, err = run(*command, code=2)
    assert "exists; name another directory" in err


def test_what_an_imported_model_cannot_be_trained_with(tmp_path, gpt2):
    text = tmp_path / "text.txt"
    text.write_text(sentences(100))
    imported = tmp_path / "imported"
    run("import", gpt2, f"--workdir={imported}")
    source = [f"--config.data.source={text}", "--config.data.document=block"]
    into = [f"--workdir={tmp_path / 'x'}", *source]
    _, err = run("train", f"--config={imported}", f"--workdir={imported}", *source, code=2)
    assert "name another" in err
    _, err = run("train", f"--config={imported}", *into, "--config.model.num_heads=1", code=78)
    assert "model.num_heads" in err
    other = "--config.data.tokenizer=sentencepiece(vocab_size=530)"
    _, err = run("train", f"--config={imported}", *into, other, code=78)
    assert "its ids are not those" in err
    _, err = run("train", f"--config={gpt2}", *into, code=78)
    assert "import it" in err
    assert not (tmp_path / "x").exists()


def test_a_model_without_a_head_embeds_and_learns_with_a_fresh_one(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(sentences(100))
    imported, trained = tmp_path / "imported", tmp_path / "trained"
    out, _ = run("import", write(tmp_path / "bert", "bert without a head"), f"--workdir={imported}")
    assert "it can embed texts, but not generate" in out

    out, _ = run("embed", f"--workdir={imported}", "the cat", "a dog")
    first, second = map(json.loads, out.splitlines())
    assert first["text"] == "the cat"
    assert len(first["vector"]) == 8
    assert first["vector"] != second["vector"]
    path = tmp_path / "states.npy"
    run("embed", f"--workdir={imported}", "the cat", "--pooling=none", f"--out={path}")
    assert np.load(path).shape == (1, 9, 8)
    np.testing.assert_allclose(np.load(path)[0].mean(0), first["vector"], atol=1e-6)
    _, err = run("embed", f"--workdir={imported}", "a", "--out=x.txt", code=2)
    assert "expected a name that ends in .npy" in err

    _, err = run("fill", f"--workdir={imported}", "the ___", code=2)
    assert "has no head that predicts tokens; use embed" in err
    few_steps = [
        f"--config.data.source={text}",
        "--config.data.document=block",
        "--config.data.batch_size=4",
        "--config.data.lengths.sequence_length=16",
        "--config.training.steps=1",
    ]
    train = ["train", f"--config={imported}", f"--workdir={trained}", *few_steps]
    _, err = run(*train, code=78)
    assert "model.lm_head: got False, but masked_lm predicts tokens; set it to True" in err
    out, _ = run(*train, "--config.model.lm_head=True")
    assert "newly drawn: head/bias, head/dense/bias" in out
    run("fill", f"--workdir={trained}", "the ___")


def test_special_ids_that_a_tokenizer_lacks_are_added(tmp_path):
    """A tokenizer of words with no special ids but [UNK] and an end of text."""
    path = write(tmp_path / "gpt2", "gpt2, untied")
    vocabulary = {"[UNK]": 0, "</s>": 1, "the": 2, "cat": 3, **{f"w{i}": i for i in range(4, 530)}}
    (path / "tokenizer.json").write_text(
        json.dumps(
            {
                "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
                "added_tokens": [
                    {"id": 0, "content": "[UNK]", "special": True},
                    {"id": 1, "content": "</s>", "special": True},
                ],
                "pre_tokenizer": {"type": "Whitespace"},
            }
        )
    )
    plain = convert.read(path)
    said = []
    with messages_to(said.append):
        loaded = convert.read(path, add_specials=True)
    size = loaded.tokenizer.vocabulary.size
    assert size > 530
    assert loaded.model.vocab_size == size
    assert said == [f"added: {size - 530} ids, with the mean of the other embeddings"]
    assert "[MASK]" in loaded.tokenizer.vocabulary.specials
    for new, old, axis in (
        (loaded.params["embedding"], plain.params["embedding"], 0),
        (loaded.params["head"]["output"], plain.params["head"]["output"], 1),
    ):
        new, old = np.moveaxis(new, axis, 0), np.moveaxis(old, axis, 0)
        np.testing.assert_array_equal(new[:530], old[:530])
        mean = np.broadcast_to(old[:530].mean(0), (size - 530, old.shape[1]))
        np.testing.assert_allclose(new[530:size], mean, atol=1e-6)
        assert not new[size:].any()


@pytest.mark.slow
def test_a_model_is_exported_from_a_mesh(tmp_path):
    """Parameters that are sharded over four devices are written as from one."""
    imported = tmp_path / "imported"
    run("import", write(tmp_path / "t5", "t5 1.1"), f"--workdir={imported}")
    run("export", f"--workdir={imported}", tmp_path / "one")
    mesh = "--mesh=fsdp=2,tensor=2"
    run_apart("export", f"--workdir={imported}", tmp_path / "four", mesh, env=with_devices(4))
    one, four = [(tmp_path / name / WEIGHTS).read_bytes() for name in ("one", "four")]
    assert one == four == (tmp_path / "t5" / WEIGHTS).read_bytes()


def test_where_decoders_begin(tmp_path):
    """With the id that config.json names, which is kept by import and export."""
    path = write(tmp_path / "t5", "t5")
    assert convert.read(path).start == Tokenizer().vocabulary.start
    change_config(path, decoder_start_token_id=7)
    loaded = convert.read(path)
    assert loaded.start == 7
    prompt = np.array([4, 5, 6], np.int32)
    row = generate._prompt(loaded, [prompt, prompt[:2]])
    assert row.tokens.tolist() == [[7], [7]]
    convert.import_model(path, tmp_path / "run", "")
    convert.export_model(tmp_path / "run", tmp_path / "out", "float32")
    assert json.loads((tmp_path / "out/config.json").read_text())["decoder_start_token_id"] == 7
    change_config(path, decoder_start_token_id=10**6)
    with pytest.raises(UserError, match="decoder_start_token_id: got the id 1000000"):
        convert.read(path)


def test_inputs_begin_as_the_tokenizer_begins_them(tmp_path):
    """BART's encoder reads <s>, the text, </s>; T5's reads the text and </s>."""
    path = write(tmp_path / "bart", "bart")
    description = json.loads((path / "tokenizer.json").read_text())
    eos = Tokenizer().vocabulary.eos
    for processor, before in (
        ({"type": "RobertaProcessing", "sep": ["</s>", eos], "cls": ["<s>", 259]}, [259]),
        (None, []),
    ):
        written = description | {"post_processor": processor}
        (path / "tokenizer.json").write_text(json.dumps(written))
        settings = json.loads((path / "tokenizer_config.json").read_text())
        settings.pop("add_bos_token", None)
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
        loaded = convert.read(path)
        (ids,) = generate.encode_prompts(loaded, ["ab"])
        assert ids.tolist() == [*before, *loaded.tokenizer.encode("ab"), eos]
        (states,) = embed(loaded, ["ab"], pooling="none")  # of the same ids
        assert len(states) == len(ids)


def test_a_model_leaves_as_what_it_came_as(tmp_path):
    path = write(tmp_path / "roberta", "roberta")
    change_config(path, model_type="camembert")
    convert.import_model(path, tmp_path / "run", "")
    convert.export_model(tmp_path / "run", tmp_path / "out", "float32")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["model_type"] == "camembert"
    assert config["architectures"] == ["CamembertForMaskedLM"]


def masked_run(make, workdir, objective, **more):
    """The run directory of a decoder that sees both sides of a mask, and the model."""
    settings = {"model.positions": "rotary", "model.mlm_head": True, **more}
    loaded = untrained(make, objective, "decoder", **settings)
    run_directory.create(workdir, loaded.config, loaded.tokenizer, loaded.params)
    return loaded


def test_a_decoder_that_predicts_masked_tokens_leaves_as_an_encoder(make, tmp_path):
    """Its logits are those of the decoder, at the same positions: before each masked token."""
    loaded = masked_run(make, tmp_path / "run", "masked_next_token")
    convert.export_model(tmp_path / "run", tmp_path / "out", "float32")
    exported = convert.read(tmp_path / "out")
    assert exported.model.architecture == "encoder"
    vocabulary = loaded.tokenizer.vocabulary
    ids = np.array([70, vocabulary["[MASK]"], 71, 72])
    row = masked_rows(loaded, [ids], 4)
    expected = logits_of(loaded.model)(loaded.params, row)[0]
    found = full_logits(exported, "encoder", [[vocabulary.start, *ids[:3]]])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_decoder_that_learned_both_leaves_in_either_way(make, tmp_path):
    loaded = masked_run(make, tmp_path / "run", "causal_lm + masked_next_token")
    said = []
    with messages_to(said.append):
        convert.export_model(tmp_path / "run", tmp_path / "masked", "float32", masked=True)
        with pytest.raises(UserError, match="none of the families"):  # a head of BERT's
            convert.export_model(tmp_path / "run", tmp_path / "causal", "float32")
    assert "--masked exports what it learned with masks" in said[-1]
    assert convert.read(tmp_path / "masked").model.architecture == "encoder"
    causal = untrained(make, "causal_lm", "decoder", **{"model.positions": "rotary"})
    run_directory.create(tmp_path / "c", causal.config, loaded.tokenizer, causal.params)
    with pytest.raises(UserError, match="--masked: this model learned causal_lm, not masked_next"):
        convert.export_model(tmp_path / "c", tmp_path / "x", "float32", masked=True)


MODERNBERT = {
    "model.feed_forward": "gated_mlp",
    "model.bias": False,
    "model.embedding_norm": True,
    "model.first_norm": False,
}


@pytest.mark.parametrize(
    ("masked", "model_type", "mask"),
    [(False, "modernbert-decoder", "<extra_id_0>"), (True, "modernbert", "[MASK]")],
)
def test_an_export_names_the_mask_of_what_it_was_exported_for(
    make, tmp_path, masked, model_type, mask
):
    objective = "causal_lm + span_corruption + masked_next_token"
    masked_run(make, tmp_path / "run", objective, **MODERNBERT)
    convert.export_model(tmp_path / "run", tmp_path / "out", "float32", masked=masked)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["model_type"] == model_type
    names = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert names["mask_token"] == mask


def test_a_model_of_sentinels_keeps_its_special_tokens_when_it_comes_back(make, tmp_path):
    t5 = {"model.positions": "relative", "model.norm": "rms_norm", "model.bias": False}
    loaded = untrained(make, "span_corruption", "encoder_decoder", **t5)
    run_directory.create(tmp_path / "run", loaded.config, loaded.tokenizer, loaded.params)
    convert.export_model(tmp_path / "run", tmp_path / "out", "float32")
    convert.import_model(tmp_path / "out", tmp_path / "again", "")
    convert.export_model(tmp_path / "again", tmp_path / "twice", "float32")
    once, twice = (
        (tmp_path / name / "tokenizer_config.json").read_text() for name in ("out", "twice")
    )
    assert json.loads(once) == json.loads(twice)
    assert json.loads(once)["mask_token"] == "<extra_id_0>"
    assert "cls_token" not in json.loads(once)


def test_a_stale_index_does_not_win_over_the_file(gpt2):
    """As in `transformers`, which takes model.safetensors where there is one."""
    params = convert.read(gpt2).params
    index = {"weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors"}}
    (gpt2 / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_array_equal(convert.read(gpt2).params["embedding"], params["embedding"])


@pytest.mark.parametrize("name", ["ForSequenceClassification", "ForTokenClassification"])
def test_a_classifier_is_not_taken_as_a_language_model(gpt2, name):
    assert convert.read(gpt2).model.lm_head
    change_config(gpt2, architectures=[f"GPT2{name}"])
    assert not convert.read(gpt2).model.lm_head


# How texts begin and end.


def with_start(loaded, ids) -> list[int]:
    """What a decoder reads before it goes on after these ids."""
    return loaded.after_start(np.array(ids, np.int32)).tolist()


def test_a_text_begins_as_the_tokenizer_begins_it(gpt2, tmp_path):
    """Ours writes <s> before a text; GPT-2's own adds nothing."""
    loaded = convert.read(gpt2)
    bos = loaded.tokenizer.vocabulary.bos
    assert with_start(loaded, [7, 8]) == [bos, 7, 8]
    description = json.loads((gpt2 / "tokenizer.json").read_text())
    bare = description | {"post_processor": None}
    (gpt2 / "tokenizer.json").write_text(json.dumps(bare))
    assert with_start(convert.read(gpt2), [7, 8]) == [7, 8]
    assert with_start(convert.read(gpt2), []) == [bos]  # something must be read
    both = {"type": "Sequence", "processors": [description["post_processor"]]}
    (gpt2 / "tokenizer.json").write_text(json.dumps(description | {"post_processor": both}))
    assert with_start(convert.read(gpt2), [7]) == [bos, 7]
    settings = json.loads((gpt2 / "tokenizer_config.json").read_text())
    settings["add_bos_token"] = False
    (gpt2 / "tokenizer_config.json").write_text(json.dumps(settings))
    assert with_start(convert.read(gpt2), [7]) == [7]
    # <s> under another name; a name that the vocabulary lacks.
    settings |= {"add_bos_token": True, "bos_token": {"content": "[MASK]"}}
    (gpt2 / "tokenizer_config.json").write_text(json.dumps(settings))
    assert with_start(convert.read(gpt2), [7]) == [loaded.tokenizer.vocabulary["[MASK]"], 7]
    (gpt2 / "tokenizer_config.json").write_text(json.dumps(settings | {"bos_token": "<bom>"}))
    with pytest.raises(UserError, match="add_bos_token is true, but the vocabulary has no <bom>"):
        convert.read(gpt2)
    settings["add_bos_token"] = False
    (gpt2 / "tokenizer_config.json").write_text(json.dumps(settings))
    # It is kept by an import, and given up once the model is trained on rows that begin with <s>.
    convert.import_model(gpt2, tmp_path / "run", "")
    assert with_start(loaded_model.load(tmp_path / "run"), [7]) == [7]
    (tmp_path / "run2").mkdir()
    text_conventions.keep_ends(tmp_path / "run2", tmp_path / "run")
    record = json.loads((tmp_path / "run2/generation.json").read_text())
    eos = loaded.tokenizer.vocabulary.eos
    expected = {"begin": None, "before_inputs": [], "ends": [eos], "model_type": "gpt2"}
    assert record == expected


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        ({"type": "Sequence"}, "cannot be understood"),
        ({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]}, "understood"),
    ],
)
def test_a_post_processor_that_is_broken(gpt2, processor, message):
    (gpt2 / "tokenizer_config.json").unlink()
    description = json.loads((gpt2 / "tokenizer.json").read_text())
    (gpt2 / "tokenizer.json").write_text(json.dumps(description | {"post_processor": processor}))
    with pytest.raises(UserError, match=message):
        convert.read(gpt2)


def test_scores_after_a_long_beginning_fit_the_positions(gpt2):
    """A tokenizer that puts three ids before a text, and texts as long as the model."""
    loaded = dataclasses.replace(
        convert.read(gpt2), conventions=text_conventions.Conventions((5, 6, 7))
    )
    target = np.arange(65, 65 + loaded.model.max_length)
    (nats,) = target_log_probabilities(loaded, [np.zeros(0, np.int32)], [target])
    assert np.isfinite(nats).all()
    assert len(nats) == len(target)
    (states,) = embed(loaded, ["abc"], pooling="none")
    assert len(states) == 6


def test_the_prompt_is_what_was_given(gpt2):
    """Greedy continuations and scores, by a loop that puts nothing before the prompt."""
    (gpt2 / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    loaded = convert.read(gpt2)
    prompt = [104, 105, 33]
    ids = list(prompt)
    for _ in range(6):
        of_tokenizer = full_logits(loaded, "decoder", [ids])[
            0, -1, : loaded.tokenizer.vocabulary.size
        ]
        ids.append(int(of_tokenizer.argmax()))
    (written,) = generate_ids(loaded, [np.array(prompt)], max_new_tokens=6)
    ends = [i for i in ids[3:] if i in loaded.ends]
    assert written.tolist() == (ids[3:] if not ends else ids[3 : ids.index(ends[0])])
    target = np.array([65, 66, 67])
    (nats,) = target_log_probabilities(loaded, [np.array(prompt)], [target])
    log_probabilities = jax.nn.log_softmax(
        full_logits(loaded, "decoder", [[*prompt, *target[:-1]]])[0]
    )
    np.testing.assert_allclose(nats, log_probabilities[[2, 3, 4], target], rtol=1e-4)


@pytest.mark.parametrize("beams", [1, 2])
def test_each_of_several_ids_ends_a_text(gpt2, tmp_path, beams):
    """As LLaMA 3 has them, in generation_config.json or config.json."""

    def write_after(prompt):
        loaded = convert.read(gpt2)
        if beams == 1:
            return generate_ids(loaded, [prompt], max_new_tokens=9)[0].tolist()
        return search_ids(loaded, [prompt], beams, max_new_tokens=9)[0][0][0].tolist()

    prompt = np.array([104, 105])
    whole = write_after(prompt)
    eos = convert.read(gpt2).tokenizer.vocabulary.eos
    change_config(gpt2, eos_token_id=[eos, whole[0]])
    first = write_after(prompt)
    assert first == [] if beams == 1 else whole[0] not in first
    content = {"eos_token_id": [eos, 3], "do_sample": True, "temperature": 0.6}
    (gpt2 / "generation_config.json").write_text(json.dumps(content))
    assert convert.read(gpt2).ends == (eos, 3)
    # They are kept by an import, and written by an export.
    convert.import_model(gpt2, tmp_path / "run", "")
    assert loaded_model.load(tmp_path / "run").ends == (eos, 3)
    convert.export_model(tmp_path / "run", tmp_path / "out", "float32")
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"] == [eos, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2 changes what is generated"),
        ({"suppress_tokens": [5]}, r"suppress_tokens=\[5\] changes"),
        ({"something_new": 1}, "something_new=1 is unknown"),
        ({"eos_token_id": [1, 10**6]}, "eos_token_id: got the id 1000000, expected a number below"),
        ({"eos_token_id": "</s>"}, "eos_token_id: got the id '</s>'"),
    ],
)
def test_settings_of_generation_that_are_not_ours_are_refused(gpt2, settings, message):
    (gpt2 / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=message):
        convert.read(gpt2)


def test_a_tokenizer_that_lies_elsewhere(tmp_path, gpt2):
    Tokenizer().save(tmp_path / "bytes")
    (gpt2 / "tokenizer.json").unlink()
    loaded = convert.read(gpt2, f"{tmp_path / 'bytes'}/")
    assert loaded.tokenizer.fingerprint == Tokenizer().fingerprint


@pytest.mark.parametrize(
    ("settings", "objective", "lengths"),
    [
        ({"architecture": "encoder"}, "masked_lm", (512, 0, 0)),
        ({"architecture": "encoder", "num_classes": 2}, "masked_lm(second='next')", (512, 0, 0)),
        ({"architecture": "encoder_decoder"}, "span_corruption", (0, 512, 114)),
        (
            {"architecture": "encoder_decoder", "vocab_size": 8},
            "text_infilling(permute_sentences=True)",
            (0, 512, 512),
        ),
        ({"architecture": "decoder", "max_length": 100}, "causal_lm", (100, 0, 0)),
    ],
)
def test_what_an_imported_model_is_trained_for(settings, objective, lengths):
    vocabulary = Tokenizer().vocabulary
    if "vocab_size" in settings:  # one with a mask and without sentinels
        vocabulary = dataclasses.replace(vocabulary, sentinels=0)
    config = convert.default_config(Model(**settings), "bytes", vocabulary)
    row = config.data.lengths
    assert config.objective == objective
    assert (row.sequence_length, row.inputs, row.targets) == lengths
