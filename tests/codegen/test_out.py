"""`--out` never deletes what it did not write: foreign and edited files stop a build before it begins."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from commands import SMALL, Command, copy_of, tree, with_manifest
from commands import command_fixture as command_fixture

from minbuild.codegen import atomic_write
from minbuild.errors import BadInput
from minbuild.ir import Package

USERS = {
    "notes.txt": b"mine",
    "build/CMakeCache.txt": b"cmake",
    "build/deep/er/object.o": b"\0\1",
    "src/patch.diff": b"mine",
    "model/trained": b"hours of training",
}


@pytest.fixture(scope="module", name="made")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package, to be copied."""
    from minbuild.cli.main import app

    out = tmp_path_factory.mktemp("made") / "dist"
    with pytest.raises(SystemExit) as left:
        app(["reduce", str(SMALL), "--out", str(out)])
    assert not left.value.code
    return out


@pytest.fixture(name="out")
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "dist", symlinks=True))


def put(out: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)


def refused(minbuild: Command, out: Path, *options: object) -> str:
    """What a refusal says; it changes nothing and builds nothing."""
    before, beside = tree(out), sorted(out.parent.iterdir())
    said = minbuild("reduce", SMALL, "--out", out, *options)
    assert said.code == 2 and "Planning" not in said.err and "Building" not in said.err
    assert tree(out) == before and sorted(out.parent.iterdir()) == beside
    return said.err


@pytest.mark.parametrize("name", USERS)
def test_a_foreign_file_is_named_and_stays(minbuild: Command, out: Path, name: str) -> None:
    put(out, {name: USERS[name]})
    assert name in refused(minbuild, out)


@pytest.mark.parametrize("name", ["src/kernels/gemm.cc", "model/checkpoint", "README.md", "manifest.json"])
def test_an_edited_file_is_named_and_stays(minbuild: Command, out: Path, name: str) -> None:
    with (out / name).open("ab") as file:
        file.write(b" ")
    assert f"{name} (edited)" in refused(minbuild, out)


def test_a_checkpoint_trained_over_the_initial_one_stays(minbuild: Command, out: Path) -> None:
    (out / "model/checkpoint").write_bytes(b"trained")
    assert "model/checkpoint (edited)" in refused(minbuild, out)


def test_many_files_are_counted(minbuild: Command, out: Path) -> None:
    put(out, {f"log{i:02}": b"x" for i in range(20)})
    assert re.search(r"log00, .*log07 and 12 more\.", refused(minbuild, out))


def test_links_and_empty_folders_are_foreign(minbuild: Command, out: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    put(elsewhere, {"precious": b"1"})
    (out / "link").symlink_to(elsewhere)
    (out / "empty").mkdir()
    said = refused(minbuild, out)
    assert "empty/" in said and "link" in said and "precious" not in said
    assert minbuild("reduce", SMALL, "--out", out, "--force").code == 0
    assert (out / "link").is_symlink() and (out / "empty").is_dir() and tree(elsewhere) == {"precious": b"1"}


def test_a_file_that_became_a_link_is_edited(minbuild: Command, out: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes((out / "README.md").read_bytes())
    (out / "README.md").unlink()
    (out / "README.md").symlink_to(tmp_path / "mine")
    assert "README.md (edited)" in refused(minbuild, out)
    assert minbuild("reduce", SMALL, "--out", out, "--force").code == 0
    assert not (out / "README.md").is_symlink() and (tmp_path / "mine").is_file()


def test_force_keeps_foreign_files_and_overwrites_edited_ones(minbuild: Command, out: Path) -> None:
    fresh = tree(out)
    put(out, USERS)
    (out / "README.md").write_text("edited")
    (out / "CMakeLists.txt").unlink()
    assert minbuild("reduce", SMALL, "--out", out, "--force").code == 0
    assert tree(out) == {**fresh, **USERS}
    assert sorted(p.name for p in out.parent.iterdir()) == ["dist"]
    assert "notes.txt" in refused(minbuild, out)  # they are no more minbuild's than before


def test_a_package_in_a_package_stays(minbuild: Command, out: Path, made: Path) -> None:
    shutil.copytree(made, out / "inner")
    assert "inner/CMakeLists.txt" in refused(minbuild, out)
    assert minbuild("reduce", SMALL, "--out", out / "inner").code == 0  # the inner one may be replaced


def test_the_current_folder_is_refused(minbuild: Command, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, named in ((out, "."), (out / "src", ".."), (out, out)):
        monkeypatch.chdir(place)
        before = tree(out)
        said = minbuild("reduce", SMALL, "--out", named)
        assert said.code == 2 and "current folder" in said.err and "Planning" not in said.err
        assert tree(out) == before
    empty = out.parent / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert minbuild("reduce", SMALL, "--out", ".").code == 2
    assert minbuild("reduce", SMALL, "--out", "dist").code == 0 and (empty / "dist/manifest.json").is_file()


def test_a_link_to_a_package_is_followed(minbuild: Command, out: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(out)
    put(out, {"notes.txt": b"mine"})
    assert minbuild("reduce", SMALL, "--out", tmp_path / "link").code == 2
    (out / "notes.txt").unlink()
    assert (
        minbuild("reduce", SMALL, "--out", tmp_path / "link").code == 0 and (tmp_path / "link").is_symlink()
    )


def without_writing(closed: Path, path: str | Path, mode: int, real=os.access) -> bool:
    """What os.access says to a user who may not write in one folder: root may everywhere."""
    return real(path, mode) and not (mode & os.W_OK and Path(path) == closed)


def test_folders_without_permission_are_refused_before_work(
    minbuild: Command, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for closed in (out, out / "src", out.parent):
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", partial(without_writing, closed))
            assert "no permission" in refused(minbuild, out)


def test_artifacts_inside_are_refused(minbuild: Command, tmp_path: Path) -> None:
    artifacts = copy_of(SMALL, tmp_path / "work")
    before = tree(tmp_path)
    for out in (artifacts, tmp_path):
        said = minbuild("reduce", artifacts, "--out", out)
        assert said.code == 2 and "Planning" not in said.err and tree(tmp_path) == before


def test_a_damaged_manifest_owns_nothing(minbuild: Command, out: Path) -> None:
    for text in (
        '{"tool": "minbuild"}',
        '{"tool": "minbuild", "files": 3}',
        '{"tool": "minbuild", "files": {"README.md": 1}}',
    ):
        (out / "manifest.json").write_text(text)
        assert "README.md" in refused(minbuild, out)
    (out / "manifest.json").write_text('{"tool": ')
    assert "is no minbuild package" in refused(minbuild, out)


def test_a_manifest_cannot_delete_what_is_elsewhere(out: Path, tmp_path: Path) -> None:

    (tmp_path / "precious").write_bytes(b"1")
    shutil.rmtree(out)
    files = with_manifest({"a": b"1", "../precious": b"1"})
    put(out, {"a": b"1", "manifest.json": files["manifest.json"]})
    atomic_write.write_package(out, Package(with_manifest({"b": b"2"})))
    assert (tmp_path / "precious").read_bytes() == b"1" and set(tree(out)) == {"b", "manifest.json"}


def test_files_that_appear_during_a_build_stay(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = with_manifest({"b": b"2"})
    put(out, {"model/trained": b"new"})
    before = tree(out)
    with pytest.raises(BadInput, match="model/trained"):
        atomic_write.write_package(out, Package(package))
    assert tree(out) == before and [p.name for p in out.parent.iterdir()] == ["dist"]
    (out / "model/trained").unlink()

    real = atomic_write._share  # the last moment before the old package is moved away

    def late(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        put(out, {"late": b"3"})

    monkeypatch.setattr(atomic_write, "_share", late)
    atomic_write.write_package(out, Package(package))
    assert set(tree(out)) == set(package)
    (left,) = (p for p in out.parent.iterdir() if p != out)
    assert tree(left) == {"old/late": b"3"}


def test_a_failure_while_foreign_files_are_shared_leaves_them(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    put(out, USERS)
    before = tree(out)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(BadInput, match="Free some space"):
        atomic_write.write_package(out, Package(with_manifest({"b": b"2"})), force=True)
    assert tree(out) == before and [p.name for p in out.parent.iterdir()] == ["dist"]


def test_a_file_takes_its_place_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"old")

    def failing(handle: int) -> None:
        assert os.fstat(handle).st_size == 3  # everything was handed to the system before
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(BadInput, match="Input/output error"):
        atomic_write.write_file(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
