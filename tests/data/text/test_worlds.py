"""Generated languages: what they tell, what they keep for the questions, and how both are read."""

from itertools import combinations

import pytest

from t5x_lite.data.tasks.examples import load_split
from t5x_lite.data.tasks.load import load_task
from t5x_lite.data.text import worlds
from t5x_lite.data.text.sources import documents
from t5x_lite.data.tokenizers import tokenizer
from t5x_lite.errors import UserError

TEXT = {name: "".join(worlds.documents(name, seed=0)) for name in worlds.LANGUAGES}


def questions(task, split, seed=0):
    return list(worlds.QUESTIONS[task](worlds.make_world(seed), split))


@pytest.mark.parametrize("task", worlds.QUESTIONS)
def test_no_split_asks_what_another_one_answers(task):
    splits = {split: set(questions(task, split)) for split in worlds.SPLITS}
    assert all(splits.values())
    for one, other in combinations(splits.values(), 2):
        assert {example.question for example in one}.isdisjoint(
            example.question for example in other
        )


def test_every_fact_is_told_with_its_land_before_its_town():
    for land, town in worlds.make_world().facts:
        told = [
            sentence
            for sentence in TEXT["facts"].split(" .")
            if land in sentence and town in sentence and "?" not in sentence
        ]
        assert len(told) == 90
        assert all(sentence.index(land) < sentence.index(town) for sentence in told)


@pytest.mark.parametrize(
    ("language", "task", "times"),
    [
        ("facts", "which_town", 60),
        ("facts", "which_land", 60),
        ("agreement", "which_verb", 0),
        ("copying", "which_list", 0),
    ],
)
def test_the_text_answers_no_question_that_judges(language, task, times):
    for split in worlds.SPLITS:
        for question, answer in questions(task, split):
            found = TEXT[language].count(f"{question}{answer} ")
            assert found == (times if split == "train" else 0)


def test_a_verb_agrees_with_the_first_noun_and_the_nearest_one_is_wrong():
    number_of = {
        word: number for nouns in worlds.make_world().nouns for number, word in enumerate(nouns)
    }
    for sentence in TEXT["agreement"].split(" .")[:-1]:
        _, first, _, _, _, verb, _ = sentence.split()
        assert verb == ("is", "are")[number_of[first]]
    answers = []
    for question, answer in questions("which_verb", "test"):
        _, first, _, _, second = question.split()
        answers.append(answer)
        assert answer == (" is", " are")[number_of[first]]
        assert number_of[second] != number_of[first]
    assert answers.count(" is") == len(answers) / 2  # so chance is one half


def test_a_list_is_asked_for_again():
    for question, answer in questions("which_list", "test"):
        assert question == f" say{answer} :"


@pytest.mark.parametrize("seed", [0, 1])
def test_every_word_is_one_token_where_it_is_read_and_where_it_is_asked_for(seed):
    """Else a model could know a fact by one spelling and be asked for it by another."""
    text = list(worlds.documents("facts", seed))
    made = tokenizer.make("sentencepiece(vocab_size=1000)", text)
    for fact in worlds.make_world(seed).facts:
        for word in fact:
            assert len(made.encode(f" {word}")) == 1


def test_another_seed_is_another_world_and_the_same_seed_the_same():
    assert list(documents("world:facts?seed=1")) == list(worlds.documents("facts", 1))
    assert set(worlds.make_world(0).facts).isdisjoint(worlds.make_world(1).facts)
    # The words are the same on every Python: these are from 3.11.
    assert worlds.make_world().facts[0] == ("puped", "bunip")


@pytest.mark.parametrize("name", worlds.QUESTIONS)
def test_each_task_ships(name):
    task = load_task(name)
    for split in worlds.SPLITS:
        loaded = load_split(task, split)
        assert [(one.text, one.label) for one in loaded.examples] == [
            (question, (answer,)) for question, answer in questions(name, split)
        ]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("world:fact", "no such language: 'fact'; did you mean facts"),
        ("world:", "no such language: ''"),
        ("world:facts?sed=1", "takes no sed"),
        ("world:facts?seed=one", "got seed='one', expected a whole number"),
    ],
)
def test_what_is_not_there_is_named(source, message):
    with pytest.raises(UserError, match=r"data\.source=world:") as raised:
        list(documents(source))
    assert message in str(raised.value)


def test_a_question_or_split_that_is_not_there_is_named():
    for spec, message in (
        ("which_land(world:which_lands)", "no such questions: 'which_lands'"),
        ("which_land(world:which_land, test=dev)", "no such split: 'dev'"),
    ):
        with pytest.raises(UserError) as raised:
            load_split(load_task(spec), "test")
        assert message in str(raised.value)
