"""Pretraining objectives. Each is one pure function from windows of tokens to Pairs of inputs and
targets.

    objective(tokens [rows, n], rng, vocabulary, **options) → Pairs

To add an objective here, write the function, declare its bound (see declaration.py) and add its
name to OBJECTIVES. Your own objective does not have to be in this package. Name it with its module
in the config: `objective = "my_module.my_objective(option=1)"`.
"""

from t5x_lite.data.objectives import denoising, language, masked

OBJECTIVES = {
    function.__name__: function
    for function in (
        language.causal_lm,
        language.prefix_lm,
        language.fill_in_the_middle,
        masked.masked_lm,
        masked.masked_next_token,
        masked.meap,
        masked.masked_diffusion,
        denoising.span_corruption,
        denoising.iid_denoising,
        denoising.drop_tokens,
        denoising.mass_style,
        denoising.bert_style,
        denoising.deshuffling,
        denoising.text_infilling,
        denoising.sentence_permutation,
    )
}

# The mixture of denoisers of Tay et al. (2023, table 1): R (regular), S (sequential) and X
# (extreme), all at the same rate. Their published preprocessing (§9.2) never rolls the mask, so the
# single span of the denoiser with mean length 64 at 15 % is always the end of the text, which makes
# it a second S denoiser. Here a mask with a single span is rolled.
UL2 = (
    "span_corruption(mean_span_length=3, noise_density=0.15, random_roll='single_span', mode='R')",
    "span_corruption(mean_span_length=8, noise_density=0.15, random_roll='single_span', mode='R')",
    "prefix_lm(split=0.75, mode='S')",
    "span_corruption(mean_span_length=3, noise_density=0.5, random_roll='single_span', mode='X')",
    "span_corruption(mean_span_length=8, noise_density=0.5, random_roll='single_span', mode='X')",
    "span_corruption(mean_span_length=64, noise_density=0.15, random_roll='single_span', mode='X')",
    "span_corruption(mean_span_length=64, noise_density=0.5, random_roll='single_span', mode='X')",
)
