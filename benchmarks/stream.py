"""Measure rows per second and memory of a stream.

`python benchmarks/stream.py --rows 5000000` writes that many synthetic pairs of about 25 tokens as JSON lines, reads
each once through `StreamedBatches` and `PretrainingCollator` in one process, and prints rows per second and resident
memory, also that within the first 50,000 rows. `--source` reads other rows.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from measure import resident
from transformers import AutoTokenizer

from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.data.stream_parts import source_shares, stream_parts
from hictl_hf.data.streaming import BUFFER, StreamedBatches
from hictl_hf.data.tokenization import train_tokenizer

FIRST_ROWS = 50_000
WORDS, SENTENCE = 6_000, 9  # different ones, and those of a side
WRITTEN_TOGETHER = 1_000


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--source", nargs="*", default=[], help="real sources; without it rows are made up")
    parser.add_argument("--tokenizer", "--encoder", help="without it one is trained on made-up sentences")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--buffer", type=int, default=BUFFER)
    args = parser.parse_args(argv)
    if args.tokenizer:
        tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    else:
        tokenizer = train_tokenizer(islice(made_up_sentences(seed=1), 20_000), vocab_size=8_000)
    with tempfile.TemporaryDirectory() as folder:
        sources = args.source or [str(write_pairs(Path(folder) / "pairs.jsonl", args.rows))]
        stream = StreamedBatches(
            sources, source_shares(stream_parts(sources)), tokenizer, args.batch_size, seed=1, buffer=args.buffer
        )
        measured = measure(stream, PretrainingCollator(tokenizer), args.rows)
    for name, value in measured.items():
        print(f"{name:<40}{value:>12,.2f}")
    return measured


def made_up_sentences(seed: int) -> Iterator[str]:
    """Words of Zipf's frequencies in random order, without end; the words are the same for every seed."""
    letters = np.random.default_rng(0).integers(ord("a"), ord("z") + 1, (WORDS, 9))
    words = ["".join(map(chr, row[: 2 + number % 8])) for number, row in enumerate(letters)]
    random, frequencies = np.random.default_rng(seed), 1 / np.arange(1, WORDS + 1)
    while True:
        drawn = random.choice(WORDS, (WRITTEN_TOGETHER, SENTENCE), p=frequencies / frequencies.sum())
        for sentence in drawn.tolist():
            yield " ".join([words[word] for word in sentence])


def write_pairs(path: Path, rows: int) -> Path:
    sentences = made_up_sentences(seed=2)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            file.write(json.dumps({"en": next(sentences), "de": next(sentences)}) + "\n")
    return path


def measure(stream: StreamedBatches, collator: PretrainingCollator, rows: int) -> dict[str, float]:
    """Of so many rows: how many there are in a second, how long they are, and the most memory that was resident."""
    read, tokens, collating, first_peak, peak = 0, 0, 0.0, 0.0, 0.0
    began, began_cpu = time.perf_counter(), time.process_time()
    for number, streamed in enumerate(stream):
        before = time.process_time()
        batch = collator(streamed["rows"])
        collating += time.process_time() - before
        stream.consumed(streamed)
        tokens += int(batch["attention_mask"].sum())
        if number % 16 == 0:
            peak = max(peak, resident("VmRSS"))
        read += len(streamed["rows"])
        if read <= FIRST_ROWS:
            first_peak = peak
        if read >= rows:
            break
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    return {
        "rows": read,
        "tokens of a row": tokens / read,
        "rows per second of one core": read / cpu_seconds,
        "the same without collating": read / (cpu_seconds - collating),
        "rows per second of the clock": read / seconds,
        f"megabytes within {FIRST_ROWS:,} rows": first_peak,
        "megabytes": peak,
        "of that": peak / first_peak,
    }


if __name__ == "__main__":
    main()
