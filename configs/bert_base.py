"""BERT base with the vocabulary size of the uncased model: 109,514,298 parameters with its
masked-LM head and without the pooler (Devlin et al., 2019, §3 and appendix A.2: Adam 1e-4, 10,000
steps of warm-up, linear decay over 1 M steps of 256 × 512, weight decay 0.01, dropout 0.1). Masks
are dynamic, as in RoBERTa. There is no next-sentence task, which masked_lm(second='next') adds.
Rows have 512 tokens from the start, whereas 90 % of the paper's steps have 128. Not trained to the
end here.

The paper's released code differs in three more ways. It masks 15 % of all tokens, including [CLS]
and [SEP]; here it is 15 % of the ordinary tokens. Its Adam has no bias correction. And its learning
rate decays from step 0, so its warm-up ends 1 % below the peak, whereas ours reaches the peak.

python -m t5x_lite train --config=configs/bert_base.py --config.data.source='text/*.txt'
--workdir=DIR
"""

from t5x_lite.config import default


def get_config():
    config = default()
    config.objective = "masked_lm"
    config.data.update(
        source="",
        tokenizer="sentencepiece(vocab_size=30522)",
        batch_size=256,
        lengths={"sequence_length": 512},
        workers=4,
    )
    config.model.update(
        architecture="encoder",
        num_layers=12,
        d_model=768,
        num_heads=12,
        norm_position="post",
        norm_epsilon=1e-12,
        embedding_norm=True,
        token_types=2,
        max_length=512,
        vocab_size=30522,
        mlm_head=True,
        init="truncated",
        dropout=0.1,
        attention_dropout=0.1,
        dtype="bfloat16",
        remat=True,
    )
    config.optimizer.update(
        learning_rate=1e-4,
        schedule="linear",
        warmup_steps=10_000,
        epsilon=1e-6,
        weight_decay=0.01,
    )
    config.training.update(
        steps=1_000_000,
        eval_every=5000,
        checkpoint_every=2000,
    )
    return config
