import json
from functools import cache, wraps
from itertools import islice

import numpy as np
import pytest
import sentencepiece
import tokenizers
from conftest import sentences

from t5x_lite.config import Task
from t5x_lite.data.tasks.kinds.kind import Example
from t5x_lite.data.tasks.kinds.table import KINDS
from t5x_lite.data.text import sources
from t5x_lite.data.tokenizers import text_models, tokenizer
from t5x_lite.errors import UserError

TEXT = [*islice(sources.python_docs(), 40), sentences(50), "Größe\n\n\tdéjà vu\r\n  ▁ <s>"]


def write_spiece(directory, **options):
    """An existing SentencePiece model, with its own defaults: a space before the text, runs of
    spaces made one.
    """
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_prefix=str(directory / "spiece"),
        vocab_size=400,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return directory / "spiece.model"


def test_chunks_are_cut_at_single_spaces_and_lose_nothing(monkeypatch):
    monkeypatch.setattr(text_models, "CHUNK", 10)
    for text in ("", "short", "one two  three four   five " * 9, "x" * 55, " " * 55):
        chunks = list(text_models.chunks(text))
        assert "".join(chunks) == text
        assert all(len(chunk) <= 20 for chunk in chunks)
    monkeypatch.setattr(text_models, "CHUNK", 20)
    chunks = list(text_models.chunks("one two  three " * 20))
    assert len(chunks) > 9
    assert all(chunk[0] == " " and chunk[1] != " " for chunk in chunks[1:-1])


def test_bytes_have_no_special_ids():
    model = text_models.Bytes()
    assert model.encode("é!").tolist() == [0xC3, 0xA9, 0x21]
    assert model.decode([0xC3, 0x21]) == "\ufffd!"
    assert model.texts()[65] == b"A"
    assert model.specials == {}


def test_an_existing_sentencepiece_model_keeps_its_ids_and_gets_sentinels_as_t5_has_them(tmp_path):
    """A model trained as T5's was: pad 0, eos 1, unk 2, a space before the text, runs of spaces
    made one.
    """
    write_spiece(tmp_path, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    path = str(tmp_path / "spiece.model")
    ours = tokenizer.make(path, [])
    theirs = sentencepiece.SentencePieceProcessor(model_file=path)
    size = theirs.get_piece_size()
    ids = ours.encode("the cat  sees it")
    assert ids.tolist() == theirs.encode("the cat  sees it")
    vocabulary = ours.vocabulary
    assert vocabulary.size == size + 100
    assert (vocabulary.pad, vocabulary.eos, vocabulary.start) == (0, 1, 0)
    assert vocabulary.sentinel(0) == size + 99
    assert not ours.lossless
    with_specials = np.append(ids, [vocabulary.sentinel(0), vocabulary.eos])
    assert ours.decode(with_specials) == "the cat sees it<extra_id_0></s>"


# Tokenizers of the `tokenizers` package.


def write_vocab_txt(directory):
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = [chr(code) for code in range(33, 127)]
    characters = [character for character in characters if not character.isupper()]
    continuations = [f"##{character}" for character in characters if character.isalnum()]
    pieces = [*special, *characters, *continuations, "the", "##tion", "return"]
    (directory / "vocab.txt").write_text("\n".join(pieces))
    return directory / "vocab.txt"


def trained_once(train):
    """Each caller gets a tokenizer of its own, which was trained once."""
    trained = cache(lambda: train().to_str())
    return wraps(train)(lambda: tokenizers.Tokenizer.from_str(trained()))


@trained_once
def train_byte_level_bpe():
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    model.train_from_iterator(TEXT, trainer)
    return model


@trained_once
def train_unigram():
    model = tokenizers.Tokenizer(tokenizers.models.Unigram())
    model.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    model.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=400,
        unk_token="<unk>",
        special_tokens=["<pad>", "</s>", "<unk>"],
        show_progress=False,
    )
    model.train_from_iterator(TEXT, trainer)
    return model


def write_vocab_bpe(directory):
    description = json.loads(train_byte_level_bpe().to_str())["model"]
    pairs = description["merges"]
    merges = "\n".join(pair if isinstance(pair, str) else " ".join(pair) for pair in pairs)
    (directory / "encoder.json").write_text(json.dumps(description["vocab"]))
    (directory / "vocab.bpe").write_text(f"#version: 0.2\n{merges}\n")
    return directory / "vocab.bpe"


def write_tokenizer_json(directory, model):
    (directory / "tokenizer.json").write_text(model.to_str())
    return directory / "tokenizer.json"


# Small tokenizers, as others publish them.
WRITE = {
    "vocab.txt": write_vocab_txt,
    "vocab.bpe": write_vocab_bpe,
    "bpe tokenizer.json": lambda path: write_tokenizer_json(path, train_byte_level_bpe()),
    "unigram tokenizer.json": lambda path: write_tokenizer_json(path, train_unigram()),
}
END_OF_TEXT = {"vocab.txt": "[SEP]", "unigram tokenizer.json": "</s>"}


@pytest.mark.parametrize("kind", WRITE)
def test_existing_tokenizers_keep_their_ids_and_find_nothing_special_in_text(kind, tmp_path):
    path = WRITE[kind](tmp_path)
    existing = tokenizer.make(str(path), [])
    vocabulary = existing.vocabulary

    text = "return the cat <unk> [MASK] </s> <|endoftext|> déjà\n\n  vu"
    ids = existing.encode(text)
    unknown = vocabulary.specials.get("[UNK]", vocabulary.specials.get("<unk>"))
    assert all(vocabulary.is_ordinary(ids) | (ids == unknown))
    assert existing.lossless == ("bpe" in kind)
    if existing.lossless:
        assert existing.decode(ids) == text
    if path.name == "tokenizer.json":
        theirs = tokenizers.Tokenizer.from_file(str(path))
        their_ids = theirs.encode("return the cat", add_special_tokens=False).ids
        assert existing.encode("return the cat").tolist() == their_ids
    assert vocabulary.eos == vocabulary[END_OF_TEXT.get(kind, "<|endoftext|>")]
    decoded = existing.decode([*existing.encode("the"), vocabulary.eos])
    assert decoded.endswith(f"the{existing.name(vocabulary.eos)}")

    # Saved, it is the same.
    existing.save(tmp_path / "saved")
    assert tokenizer.load(tmp_path / "saved").fingerprint == existing.fingerprint
    saved = tokenizer.make(str(tmp_path / "saved"), [])
    assert saved.encode(text).tolist() == ids.tolist()

    # With special ids appended, text has the same ids.
    extended = tokenizer.make(str(path), [], add_specials=True)
    assert extended.encode(text).tolist() == ids.tolist()
    assert extended.vocabulary.sentinels == 256
    assert all(name in extended.vocabulary.specials for name in tokenizer.SPECIALS)
    assert extended.fingerprint != existing.fingerprint
    pieces = extended.vocabulary.describe(extended.encode("the cat, the")[None])
    assert pieces.starts_word.sum() >= 2


def test_gpt2_has_one_special_id_and_bert_its_own(tmp_path):
    gpt2 = tokenizer.make(str(write_vocab_bpe(tmp_path)), []).vocabulary
    assert gpt2.pad == gpt2.eos == gpt2.bos == gpt2.start
    assert gpt2.sentinels == 0
    bert = tokenizer.make(str(write_vocab_txt(tmp_path)), []).vocabulary
    assert [bert[name] for name in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")] == [0, 3, 4, 5]
    assert bert.ordinary == (range(6, bert.size),)
    assert (bert.pad, bert.eos, bert.bos, bert.start) == (0, 4, None, 0)
    with pytest.raises(UserError, match=r"has no \[R\]; set data.add_specials=True"):
        bert["[R]"]


@pytest.mark.parametrize("kind", WRITE)
def test_the_texts_of_ids_are_the_text(kind, tmp_path):
    existing = tokenizer.make(str(WRITE[kind](tmp_path)), [])
    texts = existing.vocabulary.texts()
    assert len(texts) == existing.model.size
    pieces = [texts[i] for i in existing.encode("return the cat")]
    assert b"".join(pieces).decode().strip() == "return the cat"
    assert all(texts[i] is None for i in existing.vocabulary.specials.values())


def test_a_long_text_has_the_ids_of_its_chunks(tmp_path, monkeypatch):
    text = sentences(60) + " ▁ déjà  vu. " + sentences(60, seed=1)
    existing = tokenizer.make(str(write_vocab_bpe(tmp_path)), [])
    whole = existing.encode(text).tolist()
    monkeypatch.setattr(text_models, "CHUNK", 100)
    assert existing.encode(text).tolist() == whole


def add_blanks(model, special_between: bool):
    """Add runs of blanks as CodeGen and GPT-NeoX do, perhaps with a special token between them."""
    token = tokenizers.AddedToken
    model.add_special_tokens(["<|pad|>"])
    model.add_tokens([token("  " * n, normalized=False) for n in range(1, 4)])
    if special_between:
        model.add_special_tokens(["<turn>"])
    model.add_tokens([token("ugly word", single_word=True), token("\t\t")])
    return model


@pytest.mark.parametrize("special_between", [False, True])
@pytest.mark.parametrize("train", [train_byte_level_bpe, train_unigram])
def test_added_tokens_that_are_not_special_are_found_in_text(train, special_between, tmp_path):
    model = add_blanks(train(), special_between)
    ours = tokenizer.make(str(write_tokenizer_json(tmp_path, model)), [])
    text = "def f(x):\n    if x:\n\t\treturn  x, ugly word, uglyword"
    ids = ours.encode(text)
    assert ids.tolist() == model.encode(text, add_special_tokens=False).ids
    added = [model.token_to_id(piece) for piece in ("    ", "\t\t", "ugly word")]
    assert all(i in ids for i in added)
    # They are text: shown, masked and drawn like it.
    assert ours.vocabulary.is_ordinary(ids).all()
    assert all(i in ours.vocabulary.ordinary_ids for i in added)
    texts = ours.vocabulary.texts()
    if ours.lossless:
        assert b"".join(texts[i] for i in ids).decode() == text
    # A special token is not.
    for special in ("<|pad|>", "<turn>")[: 1 + special_between]:
        i = model.token_to_id(special)
        assert i in model.encode(f"a{special}b").ids
        assert i not in ours.encode(f"a{special}b")
        assert not ours.vocabulary.is_ordinary(np.array(i))
        assert ours.name(i) == special


def change_id(description, piece, value):
    for token in description["added_tokens"]:
        if token["content"] == piece:
            token["id"] = value
    return description


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (4_000_000_000, "has id 4000000000, expected a number from 0 to 9,999,999"),
        (-1, "has id -1, expected"),
        (7, "have the same id, 7"),
        (900, r"has id 900, but its place gives it \d+; number the added tokens in order"),
    ],
)
def test_impossible_ids_are_refused(value, message, tmp_path):
    description = json.loads(add_blanks(train_byte_level_bpe(), False).to_str())
    change_id(description, "\t\t", value)
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(UserError, match=message):
        tokenizer.make(str(tmp_path), [])


def test_user_defined_pieces_that_look_special_are_not_found_in_text(tmp_path):
    """A SentencePiece model finds its user-defined symbols in any text, as mT5's sentinels."""
    write_spiece(tmp_path, user_defined_symbols=["<mask>", "\n\n", "<extra_id_0>"])
    ours = tokenizer.make(str(tmp_path / "spiece.model"), [])
    ids = ours.encode("a <mask> b\n\nc <extra_id_0>")
    assert ours.vocabulary["<mask>"] not in ids
    assert ours.vocabulary["<extra_id_0>"] not in ids
    assert ours.vocabulary["[MASK]"] == ours.vocabulary["<mask>"]


# Texts that are decoded and encoded again.


@pytest.mark.parametrize("kind", [*WRITE, "spiece.model", "bytes"])
def test_a_continuation_keeps_the_blank_that_it_begins_with(kind, tmp_path):
    write = WRITE | {"spiece.model": write_spiece, "bytes": lambda path: "bytes"}
    existing = tokenizer.make(str(write[kind](tmp_path)), [])
    ids = existing.encode("the cat sat on the mat, it did").tolist()
    whole = existing.decode(ids)
    for cut in range(len(ids) + 1):
        before, after = ids[:cut], ids[cut:]
        text = existing.decode_after(before, after)
        assert existing.decode(before) + text == whole
    first = existing.encode("the cat").tolist()
    assert existing.decode_after(first, ids[len(first) :]).startswith(" sat")


@pytest.mark.parametrize("kind", [*WRITE, "spiece.model", "bytes"])
@pytest.mark.parametrize("name", KINDS)
def test_labels_are_read_as_the_vocabulary_writes_them(kind, name, tmp_path):
    """BERT's vocabulary writes "not _ entailment" and "3. 8"."""
    write = WRITE | {"spiece.model": write_spiece, "bytes": lambda path: "bytes"}
    existing = tokenizer.make(str(write[kind](tmp_path)), [])
    of_kind = KINDS[name]
    if not of_kind.is_learned:
        return
    labels = ("not_entailment", "B-PER", "entailment", "True")
    task = Task(name="a", kind=name, source="a", labels=labels)
    examples = {
        "classify": [0, 1, 2, 3],
        "choose": [0, 1],
        "regress": [3.8, -0.2, 0.0, 5.0, -1.0],
        "label": [(0, 2, 1), (3, 3, 1)],
    }
    for label in examples.get(name, [("4-3 to U.S. (x)",), ("",)]):
        text = "a b c" if name == "label" else "a"
        example = Example(0, text, "", label, ("x", "y"), None, {})
        written = existing.as_written(of_kind.answer(task, example))
        assert of_kind.label_of(task, written, example, existing.as_written) == label


def test_a_small_negative_number_is_written_as_zero():
    task = Task(name="a", kind="regress", source="a")
    example = Example(0, "a", "", -0.04, (), None, {})
    assert KINDS["regress"].answer(task, example) == "0.0"
