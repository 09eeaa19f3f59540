"""Many builds as one: a fleet of models and targets, built side by side and resumed where it was stopped.

`job` is one build as a value that can travel to another machine, `ledger` what is finished, `schedulers` run jobs in
processes here or on Dask's workers, `run` is the arrow from jobs to `FleetReport`. Only `dask_scheduler` imports
distributed; the file that describes a fleet is read by `cli`, because its keys are the options of `minbuild reduce`.
"""

from __future__ import annotations

from minbuild.fleet.job import Job, Outcome
from minbuild.fleet.report import BuildResult, FleetReport
from minbuild.fleet.run import FleetProgress, run_fleet
from minbuild.fleet.schedulers import LocalScheduler, Scheduler

__all__ = [
    "BuildResult",
    "FleetProgress",
    "FleetReport",
    "Job",
    "LocalScheduler",
    "Outcome",
    "Scheduler",
    "run_fleet",
]
