"""Jobs of a run on XTREME, which processes share: training a candidate, predicting a language, a sweep over layers.

Each job is done by one process alone, with the result that a run of one process has.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..processes import Processes


@dataclass(frozen=True)
class Job:
    """Work that ends with a file.

    Attributes:
        path: the file, which is written when the job is done.
        stage: jobs of a stage need the files of those before it: 0 for candidates, 1 for those trained on labels that
            a model has predicted, 2 for predictions.
        cost: an estimate of its time, to compare with jobs of the same stage.
        run: does the job.
    """

    path: Path
    stage: int
    cost: float
    run: Callable[[], object]


def share_jobs(jobs: Iterable[Job], processes: Processes) -> None:
    """Do this process's share of the jobs whose files are missing, stage by stage; all processes return together.

    Args:
        jobs: the same in all processes; of jobs with the same file the first is done.
    """
    distinct = list({job.path: job for job in reversed(list(jobs))}.values())[::-1]
    processes.wait()  # until all have listed them
    for stage in sorted({job.stage for job in distinct}):
        missing = [number for number, job in enumerate(distinct) if job.stage == stage and not job.path.exists()]
        for number in share_of(processes, [(number, distinct[number].cost) for number in processes.from_main(missing)]):
            distinct[number].run()
        processes.wait()


def share_of(processes: Processes, costs: Iterable[tuple[int, float]]) -> list[int]:
    """The numbers of this process's jobs, in order: the costliest is given first, to whom has least to do.

    >>> costs = [(1, 3.0), (2, 2.0), (5, 2.0)]
    >>> share_of(Processes(0, 2), costs), share_of(Processes(1, 2), costs)
    ([1], [2, 5])
    """
    loads, own = [0.0] * processes.number, []
    for number, cost in sorted(costs, key=lambda job: -job[1]):
        process = loads.index(min(loads))
        loads[process] += cost
        if process == processes.index:
            own.append(number)
    return sorted(own)
