import numpy as np
import pytest
import sentencepiece
from conftest import sentences
from hypothesis import example, given
from hypothesis import strategies as st

from t5x_lite.data import sources, tokenizer
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
    assert trained.decode([vocabulary.sentinel(0), vocabulary.sentinel(99)]) == "<extra_id_0><extra_id_99>"
    assert vocabulary.sentinel(0) == 799
    names = [trained.name(i) for i in range(vocabulary.ordinary[1], vocabulary.size - 100)]
    assert tuple(names) == tokenizer.SPECIALS
    assert trained.decode([vocabulary.eos, *trained.encode(" a"), vocabulary.pad]) == "</s> a<pad>"


def test_lone_surrogates_become_a_replacement(trained):
    assert trained.decode(trained.encode("a\ud800b")) == "a\ufffdb"


def test_training_is_deterministic_and_saving_keeps_the_fingerprint(trained, tmp_path):
    again = tokenizer.train(TEXT, 800)
    assert again.fingerprint == trained.fingerprint
    trained.save(tmp_path)
    assert tokenizer.load(tmp_path).fingerprint == trained.fingerprint
    (tmp_path / "spiece.model").write_bytes(tokenizer.train(TEXT, 790)._proto)
    with pytest.raises(Refusal, match="its file has changed"):
        tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("byte", "did you mean bytes"),
        ("sentencepiece(size=5)", "sentencepiece"),
        ("sentencepiece(vocab_size=10)", "expected a number from 369"),
        ("sentencepiece(vocab_size=100000)", "give another vocab_size"),
        ("sentencepiece(vocab_size=99999999999)", "give another vocab_size"),
        ("missing.model", "no usable SentencePiece model"),
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
