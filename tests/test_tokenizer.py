import json

import numpy as np
import pytest
import sentencepiece
import tokenizers
from conftest import sentences
from hypothesis import example, given
from hypothesis import strategies as st

from t5x_lite.data import sources, text_models, tokenizer
from t5x_lite.errors import Refusal

TEXT = [*list(sources.python_docs())[:40], sentences(50), "Größe\n\n\tdéjà vu\r\n  ▁ <s>"]


@pytest.fixture(scope="module")
def trained():
    return tokenizer.train(TEXT, 800)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example(" ▁▁ <extra_id_3></s>[MASK] \0\r\n\t  é漢 ")
@example("▁")
@example("<unk><s><0x0A>")
def test_trained_and_bytes_are_lossless_and_text_is_never_special(trained, text):
    for made in (trained, tokenizer.Tokenizer()):
        ids = made.encode(text)
        assert made.vocabulary.is_ordinary(ids).all()
        assert made.decode(ids) == text


def test_more_characters_than_pieces_are_spelled_in_bytes():
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 3000))) * 2
    made = tokenizer.train([text, *TEXT], 800)
    assert made.decode(made.encode(text)) == text
    assert len(made.encode(" return the")) < 8  # room is left for words


def test_special_ids(trained):
    vocabulary = trained.vocabulary
    assert vocabulary.size == 800
    assert trained.decode([vocabulary.sentinel(0), vocabulary.sentinel(255)]) == "<extra_id_0><extra_id_255>"
    assert vocabulary.sentinel(0) == 799
    names = [trained.name(i) for i in range(vocabulary.ordinary[1], vocabulary.size - 256)]
    assert tuple(names) == tokenizer.SPECIALS
    assert trained.decode([vocabulary.eos, *trained.encode(" a"), vocabulary.pad]) == "</s> a<pad>"


def test_lone_surrogates_become_a_replacement(trained):
    assert trained.decode(trained.encode("a\ud800b")) == "a\ufffdb"


def test_training_is_deterministic_and_saving_keeps_the_fingerprint(trained, tmp_path):
    again = tokenizer.train(TEXT, 800)
    assert again.fingerprint == trained.fingerprint
    trained.save(tmp_path)
    assert tokenizer.load(tmp_path).fingerprint == trained.fingerprint
    (tmp_path / "spiece.model").write_bytes(tokenizer.train(TEXT, 790).model._proto)
    with pytest.raises(Refusal, match="its file has changed"):
        tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("byte", "did you mean bytes"),
        ("sentencepiece(size=5)", "sentencepiece"),
        ("sentencepiece(vocab_size=10)", "expected a number from 525"),
        ("sentencepiece(vocab_size=100000)", "give another vocab_size"),
        ("sentencepiece(vocab_size=99999999999)", "give another vocab_size"),
        ("missing.model", "cannot read"),
    ],
)
def test_bad_tokenizers_are_refused(spec, words):
    with pytest.raises(Refusal, match="tokenizer") as caught:
        tokenizer.make(spec, [sentences(50)])
    assert words in str(caught.value)


def test_somebody_elses_model_keeps_its_ids_and_gets_sentinels_as_t5_has_them(tmp_path):
    """A model trained as T5's was: pad 0, eos 1, unk 2, a space put before the text, runs of spaces made one."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_prefix=str(tmp_path / "spiece"),
        vocab_size=400,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    made = tokenizer.make(str(tmp_path / "spiece.model"), [])
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    ids = made.encode("the cat  sees it")
    assert ids.tolist() == theirs.encode("the cat  sees it")
    vocabulary, size = made.vocabulary, theirs.get_piece_size()
    assert (vocabulary.size, vocabulary.pad, vocabulary.eos, vocabulary.sentinel(0)) == (size + 100, 0, 1, size + 99)
    assert vocabulary.start == 0
    assert not made.lossless
    assert made.decode(np.append(ids, [vocabulary.sentinel(0), 1])) == "the cat sees it<extra_id_0></s>"


def huggingface(kind: str, directory):
    """Files of a small tokenizer of the `tokenizers` package, as others publish them."""
    if kind == "vocab.txt":
        special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
        pieces = [*special, *letters, *(f"##{c}" for c in letters if c.isalnum()), "the", "##tion", "return"]
        (directory / "vocab.txt").write_text("\n".join(pieces))
        return directory / "vocab.txt"
    byte_level = kind in ("vocab.bpe", "bpe tokenizer.json")
    made = tokenizers.Tokenizer(tokenizers.models.BPE() if byte_level else tokenizers.models.Unigram())
    split = tokenizers.pre_tokenizers
    made.pre_tokenizer = split.ByteLevel(add_prefix_space=False) if byte_level else split.Metaspace()
    made.decoder = tokenizers.decoders.ByteLevel() if byte_level else tokenizers.decoders.Metaspace()
    special = {
        "show_progress": False,
        "special_tokens": ["<|endoftext|>"] if byte_level else ["<pad>", "</s>", "<unk>"],
    }
    if byte_level:
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=split.ByteLevel.alphabet(), **special)
    else:
        trainer = tokenizers.trainers.UnigramTrainer(vocab_size=400, unk_token="<unk>", **special)
    made.train_from_iterator(TEXT, trainer)
    if kind == "vocab.bpe":
        described = json.loads(made.to_str())["model"]
        merges = "\n".join(pair if isinstance(pair, str) else " ".join(pair) for pair in described["merges"])
        (directory / "encoder.json").write_text(json.dumps(described["vocab"]))
        (directory / "vocab.bpe").write_text(f"#version: 0.2\n{merges}\n")
        return directory / "vocab.bpe"
    (directory / "tokenizer.json").write_text(made.to_str())
    return directory / "tokenizer.json"


KINDS = ["vocab.txt", "vocab.bpe", "bpe tokenizer.json", "unigram tokenizer.json"]


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_of_others_keep_their_ids_and_find_nothing_special_in_text(kind, tmp_path):
    path = huggingface(kind, tmp_path)
    made = tokenizer.make(str(path), [])
    vocabulary = made.vocabulary
    text = "return the cat <unk> [MASK] </s> <|endoftext|> déjà\n\n  vu"
    ids = made.encode(text)
    unknown = vocabulary.specials.get("[UNK]", vocabulary.specials.get("<unk>"))
    assert all(vocabulary.is_ordinary(ids) | (ids == unknown))
    assert made.lossless == ("bpe" in kind)
    if made.lossless:
        assert made.decode(ids) == text
    if path.name == "tokenizer.json":
        plain = tokenizers.Tokenizer.from_file(str(path))
        assert plain.encode("return the cat", add_special_tokens=False).ids == made.encode("return the cat").tolist()
    ends = {"vocab.txt": "[SEP]", "unigram tokenizer.json": "</s>"}.get(kind, "<|endoftext|>")
    assert vocabulary.eos == vocabulary[ends]
    assert made.decode([*made.encode("the"), vocabulary.eos]).endswith(f"the{made.name(vocabulary.eos)}")
    made.save(tmp_path / "saved")
    assert tokenizer.load(tmp_path / "saved").fingerprint == made.fingerprint
    assert tokenizer.make(str(tmp_path / "saved"), []).encode(text).tolist() == ids.tolist()
    more = tokenizer.make(str(path), [], add_specials=True)
    assert more.encode(text).tolist() == ids.tolist()
    assert more.vocabulary.sentinels == 256
    assert all(name in more.vocabulary.specials for name in tokenizer.SPECIALS)
    assert more.fingerprint != made.fingerprint
    words = [t for t in more.vocabulary.pieces.opens[more.encode("the cat, the")].tolist() if t]
    assert len(words) >= 2


def test_gpt2_has_one_special_id_and_bert_its_own(tmp_path):
    gpt2 = tokenizer.make(str(huggingface("vocab.bpe", tmp_path)), []).vocabulary
    assert gpt2.pad == gpt2.eos == gpt2.bos == gpt2.start
    bert = tokenizer.make(str(huggingface("vocab.txt", tmp_path)), []).vocabulary
    assert [bert[name] for name in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")] == [0, 3, 4, 5]
    assert bert.ordinary == (6, bert.size)
    assert (bert.pad, bert.eos, bert.start) == (0, 4, 0)
    with pytest.raises(Refusal, match=r"has no \[R\]"):
        bert["[R]"]


def test_a_cut_text_has_the_ids_of_the_whole(tmp_path, monkeypatch):
    text = sentences(60) + " ▁ déjà  vu. " + sentences(60, seed=1)
    for made in (tokenizer.train(TEXT, 800), tokenizer.make(str(huggingface("vocab.bpe", tmp_path)), [])):
        whole = made.encode(text).tolist()
        with monkeypatch.context() as patched:
            patched.setattr(text_models, "PIECE", 100)
            assert made.encode(text).tolist() == whole


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", "{}", "no usable tokenizer"),
        ("tokenizer.json", "", "is empty"),
        ("vocab.txt", "the\ncat", "no end-of-text id; set data.add_specials=True"),
        ("spiece.model", "no model", "no usable tokenizer"),
        ("vocab.bpe", "#version", "cannot read .*encoder.json"),
        ("other.bin", "x", "this directory has none of"),
    ],
)
def test_damaged_files_of_others_are_refused(name, content, words, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(Refusal, match=words):
        tokenizer.make(str(tmp_path if name == "other.bin" else tmp_path / name), [])
