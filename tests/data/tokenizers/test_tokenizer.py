from itertools import islice

import pytest
from conftest import sentences
from hypothesis import example, given
from hypothesis import strategies as st

from t5x_lite.data.text import sources
from t5x_lite.data.tokenizers import text_models, tokenizer
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, UserError
from t5x_lite.progress import messages_to

TEXT = [*islice(sources.python_docs(), 40), sentences(50), "Größe\n\n\tdéjà vu\r\n  ▁ <s>"]


# What is trained, as data.tokenizer names it, with the file that it is saved in.
TRAINED = {
    "sentencepiece(model_type='bpe')": "spiece.model",
    "sentencepiece(model_type='unigram')": "spiece.model",
    "byte_level_bpe()": "tokenizer.json",
}


def train(kind, documents, vocab_size):
    return tokenizer.make(kind.replace("(", f"(vocab_size={vocab_size},", 1), documents)


@pytest.fixture(scope="module", params=TRAINED)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trained(kind):
    return train(kind, TEXT, 800)


# Our own tokenizers.


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example(" ▁▁ <extra_id_3></s>[MASK] \0\r\n\t  é漢 ")
@example("▁")
@example("<unk><s><0x0A>")
def test_trained_and_bytes_are_lossless_and_text_is_never_special(trained, text):
    for own in (trained, tokenizer.Tokenizer()):
        ids = own.encode(text)
        assert own.vocabulary.is_ordinary(ids).all()
        assert own.decode(ids) == text


def test_special_ids_are_written_by_their_names(trained):
    vocabulary = trained.vocabulary
    assert vocabulary.size == 800
    assert vocabulary.sentinel(0) == 799
    sentinels = [vocabulary.sentinel(0), vocabulary.sentinel(255)]
    assert trained.decode(sentinels) == "<extra_id_0><extra_id_255>"
    names = [trained.name(i) for i in range(vocabulary.ordinary[-1].stop, vocabulary.size - 256)]
    assert tuple(names) == tokenizer.SPECIALS
    ids = [vocabulary.eos, *trained.encode(" a"), vocabulary.pad]
    assert trained.decode(ids) == "</s> a<pad>"
    assert trained.decode([]) == ""


def test_lone_surrogates_become_a_replacement(trained):
    assert trained.decode(trained.encode("a\ud800b")) == "a\ufffdb"


def test_more_characters_than_pieces_are_spelled_in_bytes(kind):
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 3000))) * 2
    trained = train(kind, [text, *TEXT], 800)
    assert trained.decode(trained.encode(text)) == text
    assert len(trained.encode(" return the")) < 8  # room is left for words


def test_training_is_deterministic_and_saving_keeps_the_fingerprint(kind, trained, tmp_path):
    again = train(kind, TEXT, 800)
    assert again.fingerprint == trained.fingerprint
    trained.save(tmp_path)
    assert tokenizer.load(tmp_path).fingerprint == trained.fingerprint
    other = train(kind, TEXT, 790).model.files()[TRAINED[kind]]
    (tmp_path / TRAINED[kind]).write_bytes(other)
    with pytest.raises(UserError, match="its file has changed"):
        tokenizer.load(tmp_path)


def test_text_for_the_vocabulary_says_nothing(kind):
    said = []
    with messages_to(said.append):
        assert train(kind, TEXT, 800).vocabulary.size == 800
    assert said == []


@pytest.mark.parametrize("vocab_size", [1000, 100_000, 99999999999])
def test_a_small_text_gets_the_largest_vocabulary_that_it_supports(kind, vocab_size):
    said = []
    text = sentences(50)
    with messages_to(said.append):
        trained = train(kind, iter([text]), vocab_size)
    size = trained.vocabulary.size
    appended = len(tokenizer.SPECIALS) + tokenizer.SENTINELS
    assert appended + 256 < size < vocab_size
    assert said == [
        f"data.tokenizer: asked for vocab_size={vocab_size}, made {size}: "
        "this text is too small for more ids"
    ]
    assert trained.vocabulary.sentinel(0) == size - 1
    for sample in (text, "Größe ▁ unseen\n"):
        assert trained.decode(trained.encode(sample)) == sample
    # The same text gives the same tokenizer, however much more was asked for.
    with messages_to(said.append):
        again = train(kind, [text], 10_000)
    assert again.fingerprint == trained.fingerprint


@pytest.mark.parametrize("documents", [[], [""], ["\n"]])
def test_a_text_with_nothing_to_learn_is_refused(kind, documents):
    with pytest.raises(UserError, match="there is no text to learn ids from") as caught:
        train(kind, documents, 800)
    assert caught.value.code == BAD_DATA


def test_pieces_that_look_special_are_text_of_ours(kind):
    text = "x\n<|--|>\ny <mask> </s>\n" * 200
    with messages_to(lambda message: None):
        trained = train(kind, [text], 700)
    assert trained.decode(trained.encode(text)) == text


def test_a_small_text_is_written_in_words(kind):
    """README's first example. A unigram model of so little text has letters in place of words."""
    text = "".join(f"The cat sat on mat {i} and saw {i * 7} dogs.\n" for i in range(500))
    with messages_to(lambda message: None):
        tokens = train(kind, [text], 8192).encode("The cat sat on mat 7 and saw 49 dogs.")
    assert (len(tokens) < 12) == ("model_type='unigram'" not in kind)


def test_the_least_vocabulary_has_room_for_one_character():
    smallest = tokenizer.train_sentencepiece(["  ", " "], 526)
    assert smallest.vocabulary.size == 526
    assert smallest.decode(smallest.encode(" any text")) == " any text"
    with pytest.raises(
        UserError, match=r"got vocab_size=525, expected a number from 526"
    ) as caught:
        tokenizer.train_sentencepiece(["  ", " "], 525)
    assert caught.value.code == BAD_CONFIG


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("byte", "did you mean bytes"),
        ("sentencepiece(size=5)", "sentencepiece"),
        ("sentencepiece(vocab_size=10)", "expected a number from 526"),
        ("sentencepiece(vocab_size='many')", "expected a whole number"),
        ("sentencepiece(model_type='word')", "expected one of bpe, unigram"),
        ("byte_level_bpe(vocab_size=9)", "expected a number from 526"),
        ("missing.model", "cannot read"),
    ],
)
def test_bad_tokenizers_are_refused(spec, words):
    with pytest.raises(UserError, match="tokenizer") as caught:
        tokenizer.make(spec, [sentences(50)])
    assert words in str(caught.value)


# Existing tokenizers.


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
def test_damaged_files_of_existing_tokenizers_are_refused(name, content, words, tmp_path):
    (tmp_path / name).write_text(content)
    path = tmp_path if name == "other.bin" else tmp_path / name
    with pytest.raises(UserError, match=words):
        tokenizer.make(str(path), [])


@pytest.mark.parametrize("record", ["{", "[]", "{}", '{"kind": "sentencepiece", "own": true}'])
def test_a_damaged_saved_tokenizer_is_refused(record, tmp_path):
    (tmp_path / "vocabulary.json").write_text(record)
    with pytest.raises(UserError, match="no usable tokenizer"):
        tokenizer.load(tmp_path)


def test_a_long_text_has_the_ids_of_its_chunks(trained, monkeypatch):
    text = sentences(60) + " ▁ déjà  vu. " + sentences(60, seed=1)
    whole = trained.encode(text).tolist()
    monkeypatch.setattr(text_models, "CHUNK", 100)
    assert trained.encode(text).tolist() == whole
