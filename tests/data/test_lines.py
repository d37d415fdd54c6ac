"""Lines are numbered, outputs appear complete or not at all."""

import gzip
import io
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hictl_hf.data import lines
from hictl_hf.data.lines import check_inputs, check_output, count_lines, open_output, read_lines, read_texts
from hictl_hf.data.records import Cursor
from hictl_hf.errors import BadInput


def test_a_pipe_is_read_as_a_file_is() -> None:
    there, here = os.pipe()
    os.write(here, "a\nж\n".encode())
    os.close(here)
    assert [line for _, line in read_lines(f"/dev/fd/{there}", Cursor())] == ["a", "ж"]
    os.close(there)


def test_reading_resumes_at_the_offset_after_any_line(tmp_path: Path) -> None:
    path, cursor = tmp_path / "a.txt", Cursor()
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\nthree")
    found = [(number, line, cursor.offsets[0]) for number, line in read_lines(str(path), cursor)]
    assert found == [(1, "one", 8), (2, "two", 12), (3, "three", 17)]  # bytes: 3 of the mark, 5, 4 and 5
    assert list(read_lines(str(path), Cursor(1, [8]))) == [(2, "two"), (3, "three")]
    assert list(read_lines(str(path), Cursor(part=0, parts=2))) == [(2, "two")]


def test_a_file_of_an_old_mac_is_not_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\rtwo\rthree")
    with pytest.raises(BadInput, match=r"a.txt: has carriage returns and no line feed, .* tr '\\r' '\\n'"):
        list(read_lines(str(path), Cursor()))
    for content in (b"one\rtwo", b"one\r\r\n", b"one\rtwo\rthree\n"):  # text with a carriage return
        path.write_bytes(content)
        assert len(list(read_lines(str(path), Cursor()))) == 1


LONG = b"a" * lines.BLOCK


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"one",
        b"one\n",
        b"\xef\xbb\xbfone\r\ntwo\n\nfour\rx",
        LONG,
        LONG + b"\n",
        LONG + b"a\nb",
        b"\n" + LONG,
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_lines_are_counted_as_they_are_read(content: bytes, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    assert count_lines(str(path)) == len(list(read_lines(str(path), Cursor())))


@pytest.mark.parametrize(
    "content",
    ["one\ntwo".encode("utf-16"), b"one\rtwo\rthree", gzip.compress(b"one")[:-9]],
    ids=["UTF-16", "carriage returns", "cut short"],  # a gzip header holds the time
)
def test_what_cannot_be_read_is_not_counted(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / ("a.gz" if content.startswith(b"\x1f") else "a.txt")
    path.write_bytes(content)
    with pytest.raises(BadInput) as reading:
        list(read_lines(str(path), Cursor()))
    with pytest.raises(BadInput) as counting:
        count_lines(str(path))
    assert str(counting.value) == str(reading.value)


def test_an_output_has_its_name_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt.gz"
    with open_output(str(path)) as output:
        output.write("eins\n")
        assert not path.exists()
    assert gzip.decompress(path.read_bytes()) == b"eins\n" and list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_output_and_the_lines_written_so_far(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old\n")
    for written in ("", "one\n"):
        with pytest.raises(KeyboardInterrupt), open_output(str(path)) as output:
            output.write(written)
            raise KeyboardInterrupt
        assert path.read_text() == "old\n"
        assert (tmp_path / "a.txt.partial").exists() is bool(written)
    assert (tmp_path / "a.txt.partial").read_text() == "one\n"
    assert [record.message.rpartition("/")[2] for record in caplog.records] == ["a.txt.partial"]


def test_inputs_and_outputs_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x")
    check_inputs([str(path)])
    check_output(str(tmp_path / "b.txt"), [str(path)])
    check_output(None, [])
    for inputs in ([str(tmp_path)], [str(path), "missing.txt"]):
        with pytest.raises(BadInput, match=f"^{inputs[-1]}: no file that can be read"):
            check_inputs(inputs)
    with pytest.raises(BadInput, match="^-: no file .* Leave the input out to read standard input."):
        check_inputs(["-"])
    for read in (lambda name: check_inputs([name]), lambda name: list(read_texts([name]))):
        with pytest.raises(BadInput, match="a.tx: no .*; allowed is UTF-8.* Did you mean .*/a.txt?"):
            read(str(tmp_path / "a.tx"))
    for output, given in ((path, path), (tmp_path / "b", tmp_path / "b.partial")):
        with pytest.raises(BadInput, match="is an input; name another output"):
            check_output(str(output), [str(given)])


def test_a_pipe_is_written_as_it_comes_and_a_device_where_a_command_can(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with open_output(f"/dev/fd/{writing}") as output:
        output.write("a\n")
    os.write(writing, b"b\n")  # the shell's descriptor stays open
    assert os.read(reading, 9) == b"a\nb\n"
    os.mkfifo(tmp_path / "fifo.gz")
    taken = os.open(tmp_path / "fifo.gz", os.O_RDONLY | os.O_NONBLOCK)
    with open_output(str(tmp_path / "fifo.gz")) as output:
        output.write("c\n")
    assert gzip.decompress(os.read(taken, 99)) == b"c\n"
    assert stat.S_ISFIFO((tmp_path / "fifo.gz").stat().st_mode)
    for name in ("-", "/dev/stdout", "/dev/null", f"/dev/fd/{writing}", str(tmp_path / "fifo.gz")):
        check_output(name, [], may_be_stream=True)
        with pytest.raises(
            BadInput, match="^/?[^ ]+: is standard output, a pipe or a device; allowed is the path of a"
        ):
            check_output(name, [])
    for descriptor in (reading, writing, taken):
        os.close(descriptor)


def test_the_file_behind_a_descriptor_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n", "utf-8")
    with (tmp_path / "log").open("a") as log, open_output(f"/dev/fd/{log.fileno()}") as output:
        output.write("after\n")
    assert (tmp_path / "log").read_text("utf-8") == "before\nafter\n"


@pytest.mark.parametrize("name", [None, "-", "/dev/stdout"])
def test_standard_output_has_several_names(name: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with open_output(name) as output:
        output.write("a\n")
    assert capsys.readouterr().out == "a\n"


def test_texts_are_read_from_files_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\x00\n")
    texts = read_texts([str(path)])
    assert next(texts) == "one"
    with pytest.raises(BadInput, match="a.txt:2: has a NUL byte in its source text"):
        next(texts)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xd0\xb6\r\n\xff")))
    texts = read_texts([])
    assert next(texts) == "ж"
    with pytest.raises(BadInput, match="standard input:2: has invalid UTF-8"):
        next(texts)
