"""Arrays and headers of `hearth run`, from and to files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hearth.cli.run import arrays, sources
from hearth.cli.run.spec import parse
from hearth.errors import ArgumentError


def made(text: str) -> np.ndarray:  # type: ignore[type-arg]
    array = arrays.host_value(parse(text))
    assert array is not None
    return array


def test_generated_arrays() -> None:
    np.testing.assert_array_equal(made("arange:float32[4]"), np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(made("arange:int8[300]")[-3:], np.arange(300).astype(np.int8)[-3:])
    np.testing.assert_array_equal(made("arange:i32[2,2]:start=-3:step=2"), [[-3, -1], [1, 3]])
    np.testing.assert_array_equal(made("full:c64[2]:value=1+2j"), np.full(2, 1 + 2j, np.complex64))
    assert made("ones:float16[2,3]").shape == (2, 3) and made("zeros:u8[]").shape == ()
    first, same, other = (made(f"random:f32[100]:seed={seed}") for seed in (1, 1, 2))
    assert first.dtype == np.float32 and (first == same).all() and (first != other).any()
    assert first.min() >= 0 and first.max() < 1
    whole = made("random:i16[100]:low=-5:high=5")
    assert whole.dtype == np.int16 and whole.min() >= -5 and whole.max() < 5
    assert made("random:bool[100]").dtype == bool and made("random:c128[4]").dtype == np.complex128
    with pytest.raises(ArgumentError, match="low < high"):
        made("random:i32[4]:low=5:high=5")
    assert arrays.host_value(parse("out:f32[4]")) is None


def test_arrays_larger_than_the_memory_are_refused() -> None:
    with pytest.raises(ArgumentError, match="this machine has"):
        arrays.check_memory([parse("zeros:f64[1<<47]")])


def test_arrays_from_files(tmp_path: Path) -> None:
    file = tmp_path / "a=b.npy"
    np.save(file, np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)))
    array = made(f"in:{file}")
    assert array.dtype == np.float32 and array.dtype.isnative and array.flags.c_contiguous
    np.testing.assert_array_equal(array, np.arange(6).reshape(2, 3))


def test_invalid_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "z.npz", a=np.zeros(1))
    (tmp_path / "z.npz").rename(tmp_path / "zip.npy")
    (tmp_path / "text.npy").write_text("1 2 3")
    (tmp_path / "empty.npy").touch()
    np.save(tmp_path / "short.npy", np.zeros(100))
    (tmp_path / "short.npy").write_bytes((tmp_path / "short.npy").read_bytes()[:200])
    np.save(tmp_path / "strings.npy", np.array([""], dtype="U0"))
    for name, says in {
        "object": "it contains Python objects", "zip": "is an .npz archive", "text": "is not an .npy file",
        "empty": "is not an .npy file", "short": "cannot be loaded", "none": "No such file",
    }.items():  # fmt: skip
        with pytest.raises(ArgumentError) as refused:
            made(f"in:{tmp_path}/{name}.npy")
        assert says in str(refused.value) and str(refused.value).count("Fix:") == 1


def test_results_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "y.npy"
    arrays.write(str(path), np.arange(3), force=False)
    with pytest.raises(ArgumentError, match="--force"):
        arrays.write(str(path), np.zeros(3), force=False)
    np.testing.assert_array_equal(np.load(path), np.arange(3))
    with pytest.raises(ValueError):
        arrays.write(str(path), np.array([{}]), force=True)
    np.testing.assert_array_equal(np.load(path), np.arange(3))
    link = tmp_path / "link.npy"
    link.symlink_to(path)
    arrays.write(str(link), np.ones(2), force=True)
    assert link.is_symlink() and np.load(path).tolist() == [1, 1]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.npy", "y.npy"]


def test_results_that_cannot_be_written_are_refused_before(tmp_path: Path) -> None:
    (tmp_path / "there.npy").touch()
    (tmp_path / "folder.npy").mkdir()
    for name, says in {"there": "exists", "none/y": "does not exist", "folder": "is a directory"}.items():
        with pytest.raises(ArgumentError, match=says):
            arrays.check_result_files([parse(f"out:f32[1]={tmp_path}/{name}.npy")], force=False)
    arrays.check_result_files([parse(f"out:f32[1]={tmp_path}/there.npy")], force=True)


def test_documents_have_no_nan() -> None:
    assert arrays.to_lists(np.array([[1.5, np.nan], [np.inf, 0]])) == [[1.5, "nan"], ["inf", 0.0]]
    assert arrays.to_lists(np.array([1 + 2j])) == [[1.0, 2.0]]
    assert arrays.to_lists(np.zeros(arrays.MAX_SHOWN + 1)) is None


def test_headers_are_sent_by_their_names_in_includes(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "k.cu").write_text(
        '#include "a.h"\n  # include <deep/b.h>\n#include <cuda_fp16.h>\n#include "gone.h"\n'
    )
    (tmp_path / "a.h").write_text('#include "a.h"\n#define A')
    (tmp_path / "lib" / "deep").mkdir()
    (tmp_path / "lib" / "deep" / "b.h").write_text('#include "c.h"')
    (tmp_path / "lib" / "deep" / "c.h").write_text("// c")
    path = str(tmp_path / "k.cu")
    found = sources.headers_of(path, sources.read_code(path), [str(tmp_path / "lib")], {"x.h": '#include "y.h"'})
    assert found == {
        "x.h": '#include "y.h"', "a.h": '#include "a.h"\n#define A', "deep/b.h": '#include "c.h"', "c.h": "// c",
    }  # fmt: skip
    assert sources.headers_of_options([f"n/a.h={tmp_path}/a.h", f"{tmp_path}/a.h"]).keys() == {"n/a.h", "a.h"}


def test_unreadable_sources_are_reported(tmp_path: Path) -> None:
    (tmp_path / "empty.cu").write_text(" \n")
    for path, says in {
        str(tmp_path / "none.cu"): "No such file", str(tmp_path): "is a directory",
        str(tmp_path / "empty.cu"): "is empty",
        "a\0b": "cannot be read",
    }.items():  # fmt: skip
        with pytest.raises(ArgumentError, match=says):
            sources.read_code(path)
    for texts, says in (
        (["none.h"], "cannot be read"),
        (["=x"], "neither FILE nor NAME"),
    ):
        with pytest.raises(ArgumentError, match=says):
            sources.headers_of_options(texts)
    with pytest.raises(ArgumentError, match="is not a directory"):
        sources.headers_of("k.cu", b"", [str(tmp_path / "none")], {})
