"""Jobs are shared so that each is done once, in the order of their stages, and about as much by each process."""

from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.processes import Processes
from hictl_hf.xtreme.sharing import Job, share_jobs, share_of

COSTS = [9, 1, 1, 8, 1, 7, 1, 6, 2, 3]


@pytest.mark.parametrize("number", [1, 2, 3, 20])
def test_each_job_is_in_the_share_of_one_process_and_shares_are_even(number: int) -> None:
    shares = [share_of(Processes(index, number), enumerate(COSTS)) for index in range(number)]
    assert sorted(job for share in shares for job in share) == [*range(10)]
    loads = [sum(COSTS[job] for job in share) for share in shares]
    assert max(loads) <= max(9, sum(COSTS) / number + 1)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_stages_follow_each_other_and_what_is_there_is_kept(
    number: int, shared_by: Callable[..., list[Any]], tmp_path: Path
) -> None:
    done: list[str] = []

    def write(path: Path) -> None:
        sleep(0.05 * (path.name == "2d"))
        done.append(path.name)
        path.write_text(path.name)

    def share(processes: Processes) -> None:
        files = [(stage, tmp_path / f"{stage}{name}") for stage in (2, 0, 1) for name in "abcd"]
        jobs = [Job(path, stage, 1.0, lambda path=path: write(path)) for stage, path in files]
        same = Job(tmp_path / "0a", 0, 1.0, lambda: pytest.fail("done twice"))
        share_jobs([*jobs, same], processes)
        assert all(path.exists() for _, path in files), "no process goes on before all are done"

    (tmp_path / "1c").write_text("there")
    shared_by(number, share)
    assert [name[0] for name in done] == ["0"] * 4 + ["1"] * 3 + ["2"] * 4 and len({*done}) == 11
    assert (tmp_path / "1c").read_text() == "there"
    shared_by(number, share)
    assert len(done) == 11


def test_an_error_of_a_job_ends_all(shared_by: Callable[..., list[Any]], tmp_path: Path) -> None:
    def fail() -> None:
        raise BadInput("no example")

    jobs = [Job(tmp_path / "a", 0, 1.0, lambda: None), Job(tmp_path / "b", 0, 1.0, fail)]
    with pytest.raises(BadInput, match="no example"):
        shared_by(2, lambda processes: share_jobs(jobs, processes))
