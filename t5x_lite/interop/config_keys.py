"""Keys of a config.json and a generation_config.json that are known not to change what a model
computes. Any other key must be read by a Family, or have the one value that the Family supports.
Otherwise the import is rejected: an unknown key may mean a different model.
"""

from typing import Any

# Special ids, what to return, and how to choose among tokens, which our own options set in each
# call. Version 4 of `transformers` has them in config.json, version 5 in generation_config.json.
IN_BOTH = {
    "bos_token_id",
    "decoder_start_token_id",
    "do_sample",
    "early_stopping",
    "eos_token_id",
    "forced_eos_token_id",  # ends a text that has reached its maximum length
    "length_penalty",
    "max_length",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "return_dict_in_generate",
    "temperature",
    "top_k",
    "top_p",
    "transformers_version",
    "use_cache",
}

# Further keys that `transformers` writes for every model: names, types, labels.
HARMLESS = IN_BOTH | {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "attn_implementation",
    "chunk_size_feed_forward",  # computes the same in pieces
    "classifier_dropout",
    "dtype",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "keys_to_ignore_at_inference",
    "label2id",
    "model_type",
    "num_labels",
    "output_past",
    "prefix",
    "problem_type",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "use_return_dict",
}

# Keys that any config.json may have, with the values that change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "bad_words_ids": (None, []),
    "begin_suppress_tokens": (None, []),
    "cross_attention_hidden_size": (None,),
    "diversity_penalty": (0, 0.0),
    "encoder_no_repeat_ngram_size": (0,),
    "exponential_decay_length_penalty": (None,),
    "force_bos_token_to_be_generated": (False,),
    "forced_bos_token_id": (None,),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "min_length": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "remove_invalid_values": (False,),
    "repetition_penalty": (1, 1.0),
    "suppress_tokens": (None, []),
    "tf_legacy_loss": (False,),
    "tie_encoder_decoder": (False,),
    "typical_p": (1, 1.0),
    "use_bfloat16": (False,),
}

# Keys of generation_config.json that only say how fast to compute, or what to return.
GENERATION_HARMLESS = IN_BOTH | {
    "_from_model_config",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "disable_compile",
    "is_assistant",
    "low_memory",
    "max_cache_len",
    "max_new_tokens",
    "max_time",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "max_matching_ngram_size",
    "output_logits",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "return_legacy_cache",
    "speculation_type",
    "target_lookbehind",
    "token_healing",
    "use_mtp",
}

# Keys of generation_config.json that change or choose tokens, with the values that change nothing.
GENERATION_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **{key: values for key, values in NEUTRAL.items() if key != "pruned_heads"},
    "constraints": (None,),
    "dola_layers": (None,),
    "encoder_repetition_penalty": (1, 1.0),
    "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0),
    "force_words_ids": (None,),
    "guidance_scale": (None, 1, 1.0),
    "min_new_tokens": (None, 0),
    "min_p": (None, 0, 0.0),
    "penalty_alpha": (None, 0, 0.0),
    "renormalize_logits": (False,),
    "sequence_bias": (None, {}),
    "stop_strings": (None, []),
    "top_h": (None,),
    "watermarking_config": (None,),
}
