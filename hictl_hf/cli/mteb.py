"""`hictl mteb`: score an encoder on the bitext-mining tasks of MTEB (`embedding.mteb_evaluation.evaluate_mteb`).

hictl mteb --model runs/demo/checkpoint --tasks Tatoeba --data tatoeba/v1 --output runs/demo/mteb
hictl mteb --model runs/demo/checkpoint --tasks Tatoeba BUCC.v2 --subsets deu-eng de-en --output runs/demo/mteb
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..embedding.encoder import LONGEST, load_encoder
from ..embedding.mteb_evaluation import KIND, as_table, evaluate_mteb, load_task
from ..files import check_place, write_json
from ..parsing import CommandParser, parse_flags
from .logs import log_to_terminal

GROUPS = {
    "input and output": ("model", "data", "output"),
    "tasks": ("tasks", "subsets"),
    "computation": ("precision", "max_length", "device"),
}


@dataclass
class MtebArguments:
    """Settings of `hictl mteb`."""

    model: str = field(metadata={"help": "Folder or Hub name of a HiCTL or XLM-R encoder."})
    output: str = field(metadata={"help": "Folder for results.json and, of each task, MTEB's own file of results."})
    tasks: list[str] = field(
        default_factory=lambda: ["Tatoeba"], metadata={"help": f"MTEB's names of tasks of the type {KIND}."}
    )
    subsets: list[str] = field(
        default_factory=list, metadata={"help": "Language pairs by MTEB's names, such as deu-eng; all without it."}
    )
    data: str | None = field(
        default=None,
        metadata={
            "help": "Folder of LASER's Tatoeba, tatoeba.deu-eng.deu and .eng, line i of both being a pair; the Hub "
            "without it."
        },
    )
    precision: str = field(default="fp32", metadata={"help": "fp32, bf16, or int8 on a CPU."})
    max_length: int = field(default=LONGEST, metadata={"help": "Tokens of a sentence that are read."})
    device: str | None = field(default=None, metadata={"help": "cpu, cuda, ...; a GPU where there is one without it."})


def make_parser() -> CommandParser:
    return CommandParser(MtebArguments, "Score an encoder on the bitext-mining tasks of MTEB.", GROUPS)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command with these arguments, by default those of the command line; returns what `results.json` holds."""
    args = parse_flags(make_parser(), argv)
    log_to_terminal()
    check_place(args.output, folder=True)
    tasks = [load_task(name, args.subsets, args.data) for name in args.tasks]
    model, tokenizer = load_encoder(args.model, args.precision, args.device)
    results = evaluate_mteb(model, tokenizer, tasks, args.output, args.max_length)
    results["protocol"] |= {"model": args.model, "precision": args.precision, "data": args.data or "Hugging Face Hub"}
    write_json(Path(args.output) / "results.json", results)
    print(as_table(results).text())
    return results
