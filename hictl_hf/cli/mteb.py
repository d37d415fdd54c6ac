"""`hictl mteb`: score an encoder on the bitext-mining tasks of MTEB (`embedding.mteb_evaluation.evaluate_mteb`).

hictl mteb --model runs/demo/checkpoint --tasks Tatoeba --data tatoeba/v1 --output runs/demo/mteb
hictl mteb --model runs/demo/checkpoint --tasks Tatoeba BUCC.v2 --subsets deu-eng de-en --output runs/demo/mteb
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..embedding.arguments import PoolingArguments
from ..embedding.encoder import check_device, check_reading, load_encoder
from ..embedding.mteb_evaluation import KIND, as_table, evaluate_mteb, load_task
from ..errors import BadInput
from ..files import check_place, write_json
from ..parsing import CommandParser, parse_flags
from ..reports.results import RESULTS_FILE, refuse_other_results
from .logs import log_to_terminal

GROUPS = {
    "input and output": ("model", "data", "output"),
    "tasks": ("tasks", "subsets"),
    "vectors": ("layer", "pooling", "max_seq_length"),
    "computation": ("precision", "device"),
}


@dataclass
class MtebArguments(PoolingArguments):
    """Arguments of `hictl mteb`."""

    model: str = field(metadata={"help": "Folder or Hub name of an encoder that HiCTL trains."})
    output: str = field(metadata={"help": "Folder for results.json and MTEB's result file of each task."})
    tasks: list[str] = field(
        default_factory=lambda: ["Tatoeba"], metadata={"help": f"MTEB tasks of the type {KIND}, by MTEB's names."}
    )
    subsets: list[str] = field(
        default_factory=list, metadata={"help": "Language pairs by MTEB's names, such as deu-eng; default: all."}
    )
    data: str | None = field(
        default=None,
        metadata={
            "help": "Folder of LASER's Tatoeba: tatoeba.deu-eng.deu and tatoeba.deu-eng.eng, aligned by line; default: "
            "the Hub."
        },
    )
    precision: str = field(default="fp32", metadata={"help": "fp32, bf16, or int8 (CPU only)."})
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Tokens per sentence; longer ones are truncated; default: the model's, or 256."},
    )
    device: str | None = field(default=None, metadata={"help": "cpu, cuda, ...; default: a GPU if available."})

    def __post_init__(self) -> None:
        check_reading(self.precision, self.pooling, self.max_seq_length)
        check_device(self.device)


def make_parser() -> CommandParser:
    return CommandParser(MtebArguments, "Score an encoder on the bitext-mining tasks of MTEB.", GROUPS, __doc__)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command and return the contents of `results.json`; `argv` defaults to the command line."""
    args = parse_flags(make_parser(), argv)
    log_to_terminal()
    check_place(args.output, folder=True)
    refuse_other_results(args.output, "protocol")
    tasks = [load_task(name, args.subsets, args.data) for name in args.tasks]
    known = {subset for task in tasks for subset in task.hf_subsets}
    if unknown := [subset for subset in args.subsets if subset not in known]:  # MTEB leaves it out
        names = f"{', '.join(unknown)}, which no task has; allowed are those of {', '.join(args.tasks)}"
        raise BadInput(f"subsets has {names}. Check the names.")
    model, tokenizer = load_encoder(args.model, args.precision, args.device)
    pooling = args.chosen_pooling(model)
    results = evaluate_mteb(model, tokenizer, tasks, args.output, args.max_seq_length, pooling)
    results["protocol"] |= {"model": args.model, "precision": args.precision, "data": args.data or "Hugging Face Hub"}
    write_json(Path(args.output) / RESULTS_FILE, results)
    print(as_table(results).text())
    return results
