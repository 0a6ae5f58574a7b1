"""The package `tokenizers`, with the files that are written, makes the same ids as ours.
tests/peers/ compares with `transformers` itself.
"""

import io
import json

import pytest
from conftest import ROOT

from t5x_lite.data.tokenizers.text_models import HuggingFace, SentencePiece
from t5x_lite.data.tokenizers.tokenizer import Tokenizer, make
from t5x_lite.errors import UserError
from t5x_lite.interop.tokenizers import pretrained_files

tokenizers = pytest.importorskip("tokenizers")

TEXT = (ROOT / "tests/golden/corpus.txt").read_text()
TEXTS = ("the cat sees the dog.", " two  blanks\nand a line", "naïve 漢字 😀 ", "\t", "")


KINDS = [
    "bytes",
    "sentencepiece(vocab_size=640, model_type='bpe')",
    "sentencepiece(vocab_size=640, model_type='unigram')",
    "byte_level_bpe(vocab_size=640)",
]


@pytest.fixture(scope="module")
def trained():
    return make(KINDS[1], [TEXT])


@pytest.mark.parametrize("kind", KINDS)
def test_our_own_tokenizers(kind):
    ours = make(kind, [TEXT])
    files = pretrained_files(ours, "decoder")
    assert set(files) == {"tokenizer.json", "tokenizer_config.json"}
    written = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    for text in (*TEXTS, TEXT):
        ids = ours.encode(text).tolist()
        assert written.encode(text, add_special_tokens=False).ids == ids
        assert written.decode(ids) == text
    vocabulary = ours.vocabulary
    assert written.get_vocab_size() == vocabulary.size
    assert written.token_to_id("<extra_id_3>") == vocabulary.sentinel(3)
    for name in ("<pad>", "</s>", "[MASK]", "<fim_middle>"):
        assert written.token_to_id(name) == vocabulary[name]


@pytest.mark.parametrize(
    ("architecture", "uses_sentinels", "more"),
    [
        ("encoder", False, {"mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}),
        ("decoder", False, {"mask_token": "[MASK]"}),
        ("decoder", True, {"mask_token": "<extra_id_0>"}),
        ("encoder_decoder", False, {"mask_token": "[MASK]"}),
        ("encoder_decoder", True, {"mask_token": "<extra_id_0>"}),
    ],
)
def test_special_tokens_are_named_where_the_model_has_learned_them(
    architecture, uses_sentinels, more
):
    files = pretrained_files(Tokenizer(), architecture, uses_sentinels)
    usual = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"}
    expected = {"tokenizer_class": "PreTrainedTokenizerFast", **usual, **more}
    assert json.loads(files["tokenizer_config.json"]) == expected


@pytest.mark.parametrize(
    ("architecture", "one_text", "two_texts"),
    [
        ("encoder", "[CLS] a [SEP]", "[CLS] a [SEP] b [SEP]"),
        ("decoder", "<s> a", "<s> a b"),
        ("prefix_decoder", "<s> a", "<s> a b"),
        ("encoder_decoder", "a </s>", "a </s> b </s>"),
    ],
)
def test_what_stands_around_a_text(architecture, one_text, two_texts):
    files = pretrained_files(Tokenizer(), architecture)
    written = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    assert written.encode("a").tokens == one_text.split()
    pair = written.encode("a", "b")
    assert pair.tokens == two_texts.split()
    second = pair.tokens.index("b")
    assert pair.type_ids[:second] == [0] * second
    assert pair.type_ids[second:] == [1] * (len(pair.tokens) - second)


# Existing tokenizers.


@pytest.fixture(scope="module")
def byte_pairs() -> bytes:
    """A tokenizer.json of somebody."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer.to_str().encode()


def test_an_existing_json_is_written_byte_for_byte(byte_pairs):
    files = pretrained_files(Tokenizer(HuggingFace(byte_pairs)), "decoder")
    assert files["tokenizer.json"] == byte_pairs
    roles = json.loads(files["tokenizer_config.json"])
    assert roles["eos_token"] == roles["bos_token"] == "<|endoftext|>"


def test_special_ids_are_appended_to_an_existing_json(byte_pairs):
    ours = Tokenizer(HuggingFace(byte_pairs), add_specials=True)
    files = pretrained_files(ours, "decoder")
    written = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    for text in TEXTS:
        assert written.encode(text).ids == ours.encode(text).tolist()
    assert written.get_vocab_size() == ours.vocabulary.size
    assert written.token_to_id("[MASK]") == ours.vocabulary["[MASK]"]
    assert written.token_to_id("<extra_id_0>") == ours.vocabulary.size - 1


@pytest.fixture(scope="module")
def unigram() -> bytes:
    """A SentencePiece model of somebody, with the special ids of T5."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=model,
        vocab_size=200,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def test_an_existing_sentencepiece_model_is_written_as_it_is(unigram):
    files = pretrained_files(Tokenizer(SentencePiece(unigram)), "encoder_decoder")
    assert files["spiece.model"] == unigram
    assert json.loads(files["tokenizer_config.json"]) == {
        "tokenizer_class": "T5Tokenizer",
        "extra_ids": 100,
        "pad_token": "<pad>",
        "eos_token": "</s>",
    }


def test_an_existing_sentencepiece_model_has_no_room_for_more_ids(unigram):
    ours = Tokenizer(SentencePiece(unigram), add_specials=True)
    with pytest.raises(UserError, match=r"with data\.add_specials=True has no such file"):
        pretrained_files(ours, "encoder_decoder")
