"""Row plans: which objectives an architecture can learn, with which windows."""

import pytest
from conftest import LENGTHS

from t5x_lite.config import Architecture, Lengths
from t5x_lite.data.objectives import OBJECTIVES
from t5x_lite.data.objectives.mixture import parse_objective
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.rows.row_plan import fit_window, plan_rows
from t5x_lite.errors import UserError

TEXT_TO_TEXT = ("decoder", "prefix_decoder", "encoder_decoder")
# Their rows may have no inputs.
LAID_OUT = {
    "masked_lm": ("encoder",),
    "causal_lm": ("decoder",),
    "fill_in_the_middle": ("decoder",),
    "masked_next_token": ("decoder",),
    "meap": ("decoder",),
    "masked_diffusion": ("encoder", "decoder"),
}


def plan(objective, architecture="decoder", **more):
    return plan_rows(objective, architecture, Lengths(**LENGTHS[architecture]), **more)


@pytest.mark.parametrize("architecture", Architecture.__args__)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_cannot_be_laid_out_is_refused_with_the_reason(name, architecture):
    if architecture in LAID_OUT.get(name, TEXT_TO_TEXT):
        (member,) = plan(name, architecture).members
        assert member.window >= member.objective.traits.min_tokens
    else:
        refused = f"objective {name} on architecture {architecture}: .*; use"
        with pytest.raises(UserError, match=refused):
            plan(name, architecture)


@pytest.mark.parametrize(
    ("objective", "architecture", "words"),
    [
        ("prefix_lm(mirrored=True)", "decoder", "use architecture encoder_decoder"),
        ("prefix_lm(score_prefix=True)", "prefix_decoder", "use architecture decoder"),
        ("prefix_lm(score_prefix=True)", "encoder_decoder", "use architecture decoder"),
        ("fill_in_the_middle(fim_rate=0.9)", "encoder_decoder", "fim_rate=1"),
        ("masked_lm(mask_rate=0.9, random_rate=0.2)", "encoder", "is more than 1"),
        ("masked_lm + masked_lm(second='order')", "encoder", "do not mix"),
    ],
)
def test_what_contradicts_the_architecture_or_itself_is_refused(objective, architecture, words):
    with pytest.raises(UserError, match=words):
        plan(objective, architecture)


def test_split_documents_contradict_sentence_pairs():
    words = "data.split_documents: a row is one sentence pair"
    with pytest.raises(UserError, match=words):
        plan("masked_lm(second='order')", "encoder", split_documents=True)


def test_too_short_rows_are_refused():
    with pytest.raises(UserError, match=r"data\.lengths=2/2: too short for any window"):
        plan_rows("span_corruption", "encoder_decoder", Lengths(inputs=2, targets=2))


@pytest.mark.parametrize(
    ("spec", "architecture", "lengths"),
    [
        ("span_corruption", "encoder_decoder", {"inputs": 512, "targets": 114}),
        ("span_corruption", "decoder", {"sequence_length": 97}),
        ("iid_denoising", "encoder_decoder", {"inputs": 100, "targets": 20}),
        ("masked_lm", "encoder", {"sequence_length": 77}),
        ("prefix_lm(mirrored=True)", "encoder_decoder", {"inputs": 33, "targets": 40}),
        ("text_infilling", "prefix_decoder", {"sequence_length": 64}),
    ],
)
def test_the_window_is_the_largest_whose_bound_fits(spec, architecture, lengths):
    objective = parse_objective(spec)
    window, shape = fit_window(objective, architecture, Lengths(**lengths))
    bound = objective.bound(window)
    larger = objective.bound(window + objective.traits.window_multiple)
    assert shape.holds(*bound[:3])
    room = RowShape(shape.encoder, shape.decoder, shape.scored and shape.encoder)
    assert not room.holds(*larger[:3])
    assert shape.scored == (bound.targets if architecture == "encoder" else 0)


def test_the_span_corruption_of_t5_reads_568_tokens():
    rows = plan_rows("span_corruption", "encoder_decoder", Lengths(inputs=512, targets=114))
    assert rows.members[0].window == 568
    assert rows.shape == RowShape(encoder=512, decoder=114)


def test_a_plan_says_what_its_rows_are():
    rows = plan("causal_lm + 3 * span_corruption")
    assert [member.rate for member in rows.members] == [0.25, 0.75]
    assert str(rows) == "causal_lm + span_corruption"
    assert rows.uses_sentinels
    assert not rows.aligned
    assert not rows.packed
    assert plan("causal_lm", split_documents=True).packed
    assert plan("prefix_lm", "encoder_decoder").packed  # two mirrored windows share a row
    assert not plan("causal_lm").uses_sentinels
    assert plan("masked_lm(second='order')", "encoder").has_sentence_pairs
    assert plan("masked_lm", "encoder").aligned


def test_rows_of_a_mixture_have_the_slots_of_its_largest_member():
    few, many = plan("masked_lm", "encoder"), plan("masked_lm(noise_density=0.3)", "encoder")
    mixed = plan("masked_lm + masked_lm(noise_density=0.3)", "encoder")
    assert few.shape.scored < many.shape.scored == mixed.shape.scored
