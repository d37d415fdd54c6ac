"""Adapt a checkpoint by LoRA: python examples/adapt_with_lora.py runs/demo/checkpoint pairs.jsonl runs/lora

Trains only low-rank matrices at the attention's queries and values, and the projection. Writes `adapter/`, small,
for peft, and `encoder/`, the adapted encoder with the matrices merged: plain XLM-R, for sentence-transformers, too.
"""

import sys
from pathlib import Path

from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, TrainingArguments, set_seed

from hictl_hf import HictlForPreTraining
from hictl_hf.data import PretrainingCollator, load_corpus, tokenize_corpus, words_never_sampled
from hictl_hf.data.tokenization import prompt_tokens, space_of
from hictl_hf.embedding import save_sentence_encoder
from hictl_hf.pretraining import HictlTrainer


def main(checkpoint: str, pairs: str, folder: str, steps: int = 100) -> dict[str, float]:
    """Return the percentage of trained parameters, and the first and last loss."""
    set_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = HictlForPreTraining.from_pretrained(checkpoint)  # or xlm-roberta-base
    model.config.special_token_ids = words_never_sampled(tokenizer, model.config.vocab_size)
    settings = LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"], modules_to_save=["projection"])
    adapted = get_peft_model(model, settings)  # adds its matrices to `model` and freezes the rest
    learn = sum(weights.numel() for weights in model.parameters() if weights.requires_grad)

    longest = min(256, model.config.max_position_embeddings - 2)
    prompt = model.config.embedding_prompt or ""  # that its sentences are read with
    texts, space = load_corpus([pairs])[0], space_of(tokenizer, prompt)
    tokens, _ = tokenize_corpus(texts, tokenizer, max_length=longest, space=space)
    arguments = TrainingArguments(
        f"{folder}/training", max_steps=steps, per_device_train_batch_size=32, learning_rate=1e-3, warmup_steps=10,
        logging_steps=max(steps // 5, 1), save_strategy="no", remove_unused_columns=False, disable_tqdm=True,
    )  # fmt: skip
    collator = PretrainingCollator(tokenizer, max_length=longest, prompt=prompt_tokens(tokenizer, prompt))
    trainer = HictlTrainer(model, arguments, train_dataset=tokens, data_collator=collator)
    trainer.train()

    adapted.save_pretrained(f"{folder}/adapter")
    save_sentence_encoder(adapted.merge_and_unload(), tokenizer, f"{folder}/encoder")
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    everything = sum(weights.numel() for weights in model.parameters())
    return {"percent that learns": 100 * learn / everything, "first loss": losses[0], "last loss": losses[-1]}


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    Path(sys.argv[3]).mkdir(parents=True, exist_ok=True)
    print(main(*sys.argv[1:]))
