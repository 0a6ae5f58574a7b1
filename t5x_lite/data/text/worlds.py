"""Worlds: small generated languages, each of which isolates one thing that objectives differ in.

facts       "the capital of LAND is TOWN", in three forms, each with the land before its town. For
            some facts, the text also asks and answers both questions: which town, and which land? A
            language model does not learn to answer the second question about the other facts (the
            reversal curse: Berglund et al., 2023; Allen-Zhu and Li, 2023, "Physics of language
            models 3.2").
agreement   a verb that agrees with a noun across another noun, as in BLiMP's distractor agreement
            (Warstadt et al., 2020). Nouns have no plural ending: only the sentences show whether
            a noun is singular or plural.
copying     a list of words, then the same list again: what induction heads do (Olsson et al.,
            2022).

A world provides text, such as "world:facts?seed=1", and examples of tasks about that text, such as
"world:which_land?seed=1". No question of a test split occurs in the text or in another split.
Everything is drawn from the seed.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from typing import NamedTuple, TypeVar

_FACTS, _NOUNS, _ITEMS = 64, 48, 24
_TELLINGS = 90  # sentences that state each fact
_ASKINGS = 60  # questions in each direction about each fact of the training splits
_SENTENCES = 4000  # in the text of agreement, and in the text of copying
_SENTENCES_IN_DOCUMENT = 8
_EXAMPLES = 96  # in each split of which_list
_LENGTHS = (3, 4, 5, 6)  # words in a list

# Splits of each task: the range of the facts or nouns that each asks about, as fractions of all
SPLITS = {"train": (0, 0.6), "validation": (0.6, 0.7), "test": (0.7, 1)}

_TOLD = (
    "the capital of {land} is {town} .",
    "{land} has the capital {town} .",
    "in {land} the capital is {town} .",
)
_WHICH_TOWN = "which town is the capital of {land} ?"
_WHICH_LAND = "which land has the capital {town} ?"
_PREPOSITIONS = ("near", "behind", "above", "under")
_ADJECTIVES = ("old", "new", "red", "big")
_VERBS = ("is", "are")  # of a singular noun, and of a plural noun

Thing = TypeVar("Thing")


class Fact(NamedTuple):
    """A land and its capital."""

    land: str
    town: str


class Example(NamedTuple):
    """A question and its answer. Both begin with a space, like words in the middle of a text, so
    that they have the same tokens as in the text.
    """

    question: str
    answer: str


@dataclass(frozen=True)
class World:
    """The words of all languages.

    Attributes:
        seed: seed that everything is drawn from.
        facts: lands and their capitals.
        nouns: pairs of a singular and its plural, two unrelated words.
        items: words that lists consist of.
    """

    seed: int
    facts: tuple[Fact, ...]
    nouns: tuple[tuple[str, str], ...]
    items: tuple[str, ...]

    def rng(self, purpose: str) -> random.Random:
        """Return a random number generator for a purpose. Call only its random(): see `_draw`."""
        return random.Random(f"{self.seed} {purpose}")


@cache
def make_world(seed: int = 0) -> World:
    """Draw the words of a world, all different, as consonant, vowel, consonant, vowel, consonant.

    >>> make_world().facts[0], len(make_world().facts)
    (Fact(land='puped', town='bunip'), 64)
    """
    rng = random.Random(f"{seed} words")
    number = 2 * _FACTS + 2 * _NOUNS + _ITEMS
    words: dict[str, None] = {}
    while len(words) < number:
        letters = (_draw(rng, "aeiou" if place % 2 else "bdfgklmnprstvz") for place in range(5))
        words["".join(letters)] = None
    unused = iter(words)
    return World(
        seed,
        tuple(Fact(next(unused), next(unused)) for _ in range(_FACTS)),
        tuple((next(unused), next(unused)) for _ in range(_NOUNS)),
        tuple(unused),
    )


def _draw(rng: random.Random, options: Sequence[Thing]) -> Thing:
    """Draw one of the options. This calls only random(), because Python promises the same numbers
    in later versions for no other method of its generator.
    """
    return options[int(rng.random() * len(options))]


def _part_of(things: Sequence[Thing], split: str) -> Sequence[Thing]:
    """Return the things that a split asks about. No two splits share a thing."""
    start, end = (round(share * len(things)) for share in SPLITS[split])
    return things[start:end]


# Languages: each yields the sentences of its text.


def facts(world: World) -> Iterator[str]:
    """Yield every fact, in each form equally often, and the questions of the training splits with
    their answers.
    """
    for fact in world.facts:
        for number in range(_TELLINGS):
            yield _TOLD[number % len(_TOLD)].format(**fact._asdict())
    for task in (which_town, which_land):
        for question, answer in task(world, "train"):
            yield from [f"{question[1:]}{answer} ."] * _ASKINGS


def agreement(world: World) -> Iterator[str]:
    """Yield sentences such as "the NOUN near the NOUN are old .", whose verb agrees with the first
    noun.
    """
    rng = world.rng("sentences of agreement")

    def draw() -> Example:
        number, other = int(rng.random() * 2), int(rng.random() * 2)
        return _verb_of(world.nouns, world.nouns, number, other, rng)

    for question, answer in _not_asked(draw, which_verb, world):
        yield f"{question[1:]}{answer} {_draw(rng, _ADJECTIVES)} ."


def copying(world: World) -> Iterator[str]:
    """Yield sentences such as "say a b c : a b c ."."""
    rng = world.rng("sentences of copying")
    for question, answer in _not_asked(lambda: _list_of(world, rng), which_list, world):
        yield f"{question[1:]}{answer} ."


def _not_asked(
    draw: Callable[[], Example], task: Callable[[World, str], Iterator[Example]], world: World
) -> Iterator[Example]:
    """Draw the sentences of a text, skipping those that a split of the task asks about."""
    asked = {example for split in SPLITS for example in task(world, split)}
    drawn = (draw() for _ in count())
    yield from islice((example for example in drawn if example not in asked), _SENTENCES)


LANGUAGES: dict[str, Callable[[World], Iterator[str]]] = {
    language.__name__: language for language in (facts, agreement, copying)
}


def documents(language: str, seed: int) -> Iterator[str]:
    """Yield the documents of a language: its sentences in random order, eight to a document."""
    world = make_world(seed)
    sentences = list(LANGUAGES[language](world))
    rng = world.rng("order of sentences")
    sentences.sort(key=lambda _: rng.random())
    for start in range(0, len(sentences), _SENTENCES_IN_DOCUMENT):
        yield " " + " ".join(sentences[start : start + _SENTENCES_IN_DOCUMENT])


# Tasks: each yields the examples of a split.


def which_town(world: World, split: str) -> Iterator[Example]:
    """Ask for the town, which the text names after the land. This is the control, which every model
    should answer.
    """
    for fact in _part_of(world.facts, split):
        yield Example(" " + _WHICH_TOWN.format(land=fact.land), f" {fact.town}")


def which_land(world: World, split: str) -> Iterator[Example]:
    """Ask for the land, which the text names before the town."""
    for fact in _part_of(world.facts, split):
        yield Example(" " + _WHICH_LAND.format(town=fact.town), f" {fact.land}")


def which_verb(world: World, split: str) -> Iterator[Example]:
    """Ask for the verb of each noun, with another noun between them. In the test split, the nouns
    differ in number (singular or plural), so that agreeing with the nearest noun is always wrong.
    In the other splits, the number of the second noun is random.
    """
    rng = world.rng(f"agreement {split}")
    nouns = _part_of(world.nouns, split)
    for pair in nouns:
        for number in (0, 1):
            other = 1 - number if split == "test" else int(rng.random() * 2)
            yield _verb_of([pair], nouns, number, other, rng)


def which_list(world: World, split: str) -> Iterator[Example]:
    """Ask for the same list again."""
    rng = world.rng("copying")
    lists: dict[Example, None] = {}
    while len(lists) < _EXAMPLES * len(SPLITS):
        lists[_list_of(world, rng)] = None
    start = _EXAMPLES * list(SPLITS).index(split)
    yield from islice(lists, start, start + _EXAMPLES)


QUESTIONS: dict[str, Callable[[World, str], Iterator[Example]]] = {
    task.__name__: task for task in (which_town, which_land, which_verb, which_list)
}


def _verb_of(
    firsts: Sequence[tuple[str, str]],
    seconds: Sequence[tuple[str, str]],
    number: int,
    other: int,
    rng: random.Random,
) -> Example:
    """Return a phrase with two nouns, and the verb of the first noun.

    Args:
        firsts, seconds: nouns to draw from, (singular, plural) each.
        number, other: numbers of the first and the second noun: 0 for singular, 1 for plural.
    """
    first, second = _draw(rng, firsts)[number], _draw(rng, seconds)[other]
    return Example(f" the {first} {_draw(rng, _PREPOSITIONS)} the {second}", f" {_VERBS[number]}")


def _list_of(world: World, rng: random.Random) -> Example:
    words = " ".join(_draw(rng, world.items) for _ in range(_draw(rng, _LENGTHS)))
    return Example(f" say {words} :", f" {words}")
