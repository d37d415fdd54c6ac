"""HiCTL in seconds, from a toy corpus to retrieval of unseen sentences: python examples/pretrain_tiny.py"""

from itertools import product
from tempfile import TemporaryDirectory

import numpy as np
from datasets import Dataset
from transformers import TrainingArguments, set_seed

from hictl_hf import HictlConfig, HictlForPreTraining
from hictl_hf.data import PretrainingCollator, tokenize_corpus, train_tokenizer, words_never_sampled
from hictl_hf.embedding import Pooling, embed_sentences
from hictl_hf.pretraining import HictlTrainer
from hictl_hf.retrieval import retrieval_accuracy

WORDS = {  # a sentence is subject, verb, object; unseen ones combine known words
    "en": ("the cat|a dog|my sister|the child", "sees|likes|buys|paints", "the house|a red apple|cold water|two books"),
    "de": ("die Katze|ein Hund|meine Schwester|das Kind", "sieht|mag|kauft|malt", "das Haus|Äpfel|Wasser|zwei Bücher"),
    "sw": ("paka|mbwa|dada yangu|mtoto", "anaona|anapenda|ananunua|anapaka", "nyumba|tufaha|maji baridi|vitabu viwili"),
}
TEXTS = {name: [" ".join(words) for words in product(*(part.split("|") for part in WORDS[name]))] for name in WORDS}


def found(model: HictlForPreTraining, tokenizer: object, rows: np.ndarray) -> float:
    """Return the percentage of German sentences nearest to their Swahili translation; training had no such pairs."""
    pooling = Pooling("projection", model.config.num_hidden_layers)
    german, swahili = (embed_sentences(model, tokenizer, TEXTS[name], pooling)[rows] for name in ("de", "sw"))
    return retrieval_accuracy(german, swahili)[0]


def main(steps: int = 120) -> tuple[float, float]:
    """`found` before and after training."""
    set_seed(1)
    seen, unseen = np.split(np.random.default_rng(1).permutation(64), [44])
    pairs = [{"x": TEXTS["en"][i], "y": TEXTS[y][i], "x_lang": "en", "y_lang": y} for y in ("de", "sw") for i in seen]
    tokenizer = train_tokenizer((text for pair in pairs for text in (pair["x"], pair["y"])), vocab_size=150)
    tokens, _ = tokenize_corpus(Dataset.from_list(pairs), tokenizer, max_length=62)

    config = HictlConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=64, type_vocab_size=1, initializer_range=0.06, hidden_dropout_prob=0.0,
        special_token_ids=words_never_sampled(tokenizer, len(tokenizer)),
    )  # fmt: skip
    model = HictlForPreTraining(config)
    before = found(model, tokenizer, unseen)
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=32, learning_rate=3e-3, warmup_steps=10,
            logging_steps=40, save_strategy="no", remove_unused_columns=False, disable_tqdm=True,
        )  # fmt: skip
        collator = PretrainingCollator(tokenizer, max_length=62)
        HictlTrainer(model, arguments, train_dataset=tokens, data_collator=collator).train()
    return before, found(model, tokenizer, unseen)


if __name__ == "__main__":
    print("unseen German sentences that find their Swahili translation: {:.0f} % → {:.0f} %".format(*main()))
