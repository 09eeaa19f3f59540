"""Where templates, kernels and schemas are found: in a checkout, an editable install, or a wheel."""

from __future__ import annotations

from pathlib import Path

from minbuild.errors import BadInput

KINDS = ("templates", "kernels", "schemas")


def root(kind: str, package: Path | None = None) -> Path:
    """The folder of one kind of asset: `templates`, `kernels` or `schemas`.

    A wheel carries them under `minbuild/_assets`. A checkout and an editable install have them beside the
    package, where `pyproject.toml` distinguishes the checkout from a `site-packages` that happens to hold a folder of
    that name. `package` is the folder of the minbuild package, for tests. Raises BadInput when the
    installation lacks them.
    """
    if kind not in KINDS:
        raise ValueError(f"no assets of kind '{kind}'; there are {', '.join(KINDS)}")
    package = package or Path(__file__).resolve().parent
    packed = package / "_assets" / kind
    if packed.is_dir():
        return packed
    beside = package.parent / kind
    if beside.is_dir() and (package.parent / "pyproject.toml").is_file():
        return beside
    raise BadInput(
        f"{package}: this installation of minbuild has no {kind} (looked in {packed} and {beside}). "
        "Install minbuild again from its wheel, or work from a complete checkout."
    )
