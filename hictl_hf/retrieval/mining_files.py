"""Mine, filter and deduplicate files; an interrupted call continues (`workdir`). The search itself is in `mining`.

    source = VectorSource("runs/demo/encoder")
    mine_files("news.de", "news.en", "pairs.tsv", source, MiningConfig(threshold=1.06))

Mined pairs are lines "score<TAB>x<TAB>y", best first; filtered pairs keep their order, repeated ones, too. Empty lines
are left out and repeated ones read once; both are counted.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..data.lines import open_output, read_texts
from ..errors import BadInput, short_repr
from ..files import is_stream, write_text
from ..processes import ALONE, Processes
from .bitext import IdPair
from .mining import MiningConfig, find_distinct, mine_vectors, score_pairs
from .report import write_mining_report
from .workdir import MiningWorkdir, Side, VectorSource, only_command

logger = logging.getLogger(__name__)


def mine_files(
    x: str, y: str, output: str, source: VectorSource, config: MiningConfig, *,
    gold: str | None = None, command: str = "", processes: Processes = ALONE,
) -> None:  # fmt: skip
    """Mine likely translations among the lines of two files and write them to `output`.

    Args:
        gold: file of true pairs, "x<TAB>y": also write a report with precision and recall to `report_folder`.
        command: the command that the report shows.
        processes: that share the embedding and the search; each of them makes the same call.
    """
    true_pairs = frozenset(read_pairs(gold)) if gold else None
    if true_pairs is not None and not true_pairs:
        raise BadInput(f"{gold}: has no pair; allowed is one or more")
    sides = [Side(file, list(read_texts([file]))) for file in (x, y)]
    if gold and true_pairs:
        tell_missing(gold, true_pairs, sides)
    with only_command(output, processes):
        work = MiningWorkdir(output, [x, y], source, config, {"pairs": None, "deduplicate": None}, processes)
        vectors = work.vectors(sides)
        if not work.share_search(vectors[0], vectors[1]):
            return
        pairs, scores = mine_vectors(vectors[0], vectors[1], config, work.neighbours)
        found = [(sides[0].sentences[i], sides[1].sentences[j]) for i, j in pairs.tolist()]
        logger.info("%s: %s pairs", output, f"{len(found):,}")
        if true_pairs is not None:
            facts = [(f"{side.given:,}", f"lines in {Path(side.name).name}") for side in sides]
            write_mining_report(report_folder(output), dict(zip(found, scores.tolist())), true_pairs, facts, command)
        finish(output, (scored_line(score, *pair) for score, pair in zip(scores, found)), work)


def tell_missing(gold: str, pairs: Collection[IdPair], sides: Sequence[Side]) -> None:
    """Log how many true pairs have a side that is not in its file, so that they cannot be found.

    Raises:
        BadInput: none of them can be found.
    """
    x, y = ({*side.sentences} for side in sides)
    missing = [pair for pair in pairs if pair[0] not in x or pair[1] not in y]
    if not missing:
        return
    names = " and ".join(side.name for side in sides)
    found = f"{len(missing):,} of {len(pairs):,} pairs have a side that is not in {names}"
    first = short_repr(min(missing))
    if len(missing) == len(pairs):
        swapped = any(pair[1] in x and pair[0] in y for pair in pairs)
        fix = "Give the files in the order of its columns" if swapped else "Write lines of the files"
        raise BadInput(f"{gold}: {found}, such as {first}; allowed are pairs of lines of these files. {fix}.")
    logger.warning("%s: %s, such as %s; they count as not found", gold, found, first)


def filter_pairs(
    pairs: str, output: str, source: VectorSource, config: MiningConfig, processes: Processes = ALONE
) -> None:
    """Write the pairs of a file with a score above the threshold, with their scores, in their order."""
    given = list(read_pairs(pairs))
    if not given:
        raise BadInput(f"{pairs}: has no pair; allowed is one or more")
    sides = [Side(f"{pairs}, {name}", side) for name, side in zip("xy", zip(*given))]
    with only_command(output, processes):
        work = MiningWorkdir(output, [pairs], source, config, {"pairs": pairs, "deduplicate": None}, processes)
        vectors = work.vectors(sides)
        if not (processes.is_main if config.margin == "absolute" else work.share_search(vectors[0], vectors[1])):
            return
        row_x, row_y = ({sentence: row for row, sentence in enumerate(side.sentences)} for side in sides)
        rows = np.array([(row_x[one], row_y[other]) for one, other in given], np.int64)
        scores = score_pairs(vectors[0], vectors[1], rows, config, work.neighbours)
        lines = [scored_line(score, *pair) for score, pair in zip(scores, given) if score > config.threshold]
        logger.info("%s: %s of %s pairs are kept", output, f"{len(lines):,}", f"{len(given):,}")
        finish(output, lines, work)


def deduplicate_lines(
    file: str, output: str, above: float, source: VectorSource, config: MiningConfig, processes: Processes = ALONE
) -> None:
    """Write the lines of a file, without those that have a cosine above this with an earlier line."""
    side = Side(file, list(read_texts([file])))
    with only_command(output, processes):
        work = MiningWorkdir(output, [file], source, config, {"pairs": None, "deduplicate": above}, processes)
        (vectors,) = work.vectors([side])
        if not work.share_search(vectors, vectors, only_earlier=True):
            return
        kept = find_distinct(vectors, above, config, work.neighbours)
        logger.info("%s: %s of %s lines are kept", output, f"{len(kept):,}", f"{side.given:,}")
        finish(output, (side.sentences[row] for row in kept), work)


def finish(output: str, lines: Iterable[str], work: MiningWorkdir) -> None:
    """Write the output, then remove the partial output."""
    if is_stream(output):
        with open_output(output) as stream:
            stream.writelines(f"{line}\n" for line in lines)
    else:
        write_text(Path(output).resolve(), "".join(f"{line}\n" for line in lines))
    work.remove()


def report_folder(output: str) -> str:
    """The folder of the report for this output file."""
    return f"{Path(output).with_suffix('')}-report"


def read_pairs(path: str) -> Iterator[IdPair]:
    """Yield the pairs of a file of lines "x<TAB>y" or "score<TAB>x<TAB>y", without those with an empty side."""
    empty = 0
    for number, line in enumerate(read_texts([path]), start=1):
        cells = line.split("\t")
        if not 2 <= len(cells) <= 3:
            found = f'{path}:{number}: has {len(cells)} columns; allowed are "x<TAB>y" and "score<TAB>x<TAB>y"'
            raise BadInput(f"{found}. Correct or remove the line.")
        if len(cells) == 3 and not is_number(cells[0]):
            score = short_repr(cells[0])
            found = f"{path}:{number}: has {score} as its score; allowed is a number, first of three columns"
            raise BadInput(f"{found}. Put the score before x and y, or leave it out.")
        x, y = cells[-2:]
        if x.strip() and y.strip():
            yield x, y
        else:
            empty += 1
    if empty:
        logger.info("%s: %s pairs with an empty side are left out", path, f"{empty:,}")


def is_number(text: str) -> bool:
    """Whether Python reads the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def scored_line(score: float, x: str, y: str) -> str:
    """A line of the output: score, x and y, in which tabs become spaces."""
    return "\t".join([f"{score:.6f}", x.replace("\t", " "), y.replace("\t", " ")])
