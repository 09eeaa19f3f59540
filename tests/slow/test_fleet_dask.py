"""Fleets on a cluster of Dask: the bits of local builds, and a worker that is killed. In an environment with
`pip install ".[fleet,test]"`:

    pytest tests/slow/test_fleet_dask.py
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import SMALL, copy_of, tree

from minbuild.analysis.budgets import Budgets
from minbuild.cli.fleet_file import read_fleet
from minbuild.errors import BadInput
from minbuild.fleet import BuildResult, LocalScheduler, run_fleet
from minbuild.fleet.ledger import LEDGER
from minbuild.fleet.report import BUILT, KEPT

distributed = pytest.importorskip("distributed")
from minbuild.fleet.dask_scheduler import DaskScheduler  # noqa: E402

BUILDS = 4
FLEET = "no-analysis = true\n[[build]]\nartifacts = 'models/*'\n"


@pytest.fixture
def cluster() -> Iterator[object]:
    """Two workers in processes of their own, which are started again when they die."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as made:
        yield made


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    for number in range(BUILDS):
        copy_of(SMALL, tmp_path / "models" / f"model{number}")
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path


class Killing:
    """Kills a worker when the first build has ended, in the middle of what it does."""

    def __init__(self, cluster: object | None = None) -> None:
        self.cluster = cluster
        self.killed = 0

    def begun(self, kept: int, missing: int, workers: int) -> None:
        self.kept, self.missing = kept, missing

    def ended(self, result: BuildResult, done: int, missing: int) -> None:
        if self.cluster is not None and done == 1:
            time.sleep(0.5)
            self.killed = next(iter(self.cluster.workers.values())).pid  # type: ignore[attr-defined]
            os.kill(self.killed, signal.SIGKILL)


def test_a_killed_worker_loses_nothing(models: Path, cluster: object) -> None:
    fleet = read_fleet(models / "fleet.toml")
    budgets = {job.name: Budgets() for job in fleet.jobs}
    here = run_fleet(fleet.jobs, models / "here", LocalScheduler(1), Killing(), budgets=budgets)
    assert here.count(BUILT) == BUILDS
    progress = Killing(cluster)
    scheduler = DaskScheduler(cluster.scheduler_address)  # type: ignore[attr-defined]
    assert scheduler.workers == 2
    there = run_fleet(fleet.jobs, models / "there", scheduler, progress, budgets=budgets)
    assert progress.killed and there.count(BUILT) == BUILDS and there.exit_code == 0
    for job in fleet.jobs:
        assert tree(models / "here" / job.name) == tree(models / "there" / job.name)
    names = [line.split('"')[3] for line in (models / "there" / LEDGER).read_text().splitlines()]
    assert sorted(names) == sorted(job.name for job in fleet.jobs)  # each was finished once
    assert len({build.worker for build in there.builds}) >= 2
    again = DaskScheduler(cluster.scheduler_address)  # type: ignore[attr-defined]
    assert run_fleet(fleet.jobs, models / "there", again, Killing(), budgets=budgets).count(KEPT) == BUILDS


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(BadInput, match="no scheduler of Dask answers there"):
        DaskScheduler("tcp://127.0.0.1:1")


def test_a_worker_with_another_minbuild_is_refused(cluster: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minbuild.fleet.dask_scheduler.fingerprint", lambda: "another")
    with pytest.raises(BadInput, match="has another version"):
        DaskScheduler(cluster.scheduler_address)  # type: ignore[attr-defined]
