"""What a run wrote, against what a failure-free run over the same seeded source wrote.

Epochs are numbered alike in both runs, so each pair of epoch folders is compared by itself: ``sink_folders`` reads them
and ``equal_rows`` counts which rows are on both sides. Here that becomes a judgement: which recovery was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from understudy.core.numbers import FIRST_EPOCH, Epoch
from understudy.verify import equal_rows
from understudy.verify.sink_folders import count_lines, epoch_files, json_lines, read_json, read_parquet

Verdict = Literal["precise", "rollback", "gap"]


@dataclass(frozen=True)
class Comparison:
    """The judgement on one sink, or, after `combine`, on all sinks of a job."""

    epochs_compared: int
    rows_run: int
    rows_reference: int
    lost: int
    """Rows of the reference that the run never wrote, nor anything in their place."""
    repeated: int
    """Rows written more often than in the reference, or on top of it; `unexpected` says how many were the
    latter."""
    different: int
    """Rows written with another content: a missing row paired with one the reference does not have."""
    first_difference: Epoch | None
    """The first epoch that is not identical."""
    lost_epochs: list[Epoch] = field(default_factory=list)
    """Every epoch that lost at least one row."""
    unexpected: int = 0
    """Those of `repeated` that the reference's epoch holds not even once. A rollback without any is
    repeatable; with some it diverged: the rows were made a second time, and came out otherwise."""

    @property
    def verdict(self) -> Verdict:
        """The recovery type that was seen, which may be better than the one the policy promises."""
        if self.lost or self.different:
            return "gap"
        return "rollback" if self.repeated else "precise"

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


def combine(comparisons: Sequence[Comparison]) -> Comparison:
    """One judgement for a job with several sinks: rows add up, and one bad sink spoils the verdict.

    ``epochs_compared`` is the smallest of them, since only so many epochs were checked everywhere.
    """
    if not comparisons:
        raise ValueError("comparisons is empty: a job without a sink left nothing that could be judged")
    firsts = [c.first_difference for c in comparisons if c.first_difference is not None]
    return Comparison(
        epochs_compared=min(c.epochs_compared for c in comparisons),
        rows_run=sum(c.rows_run for c in comparisons),
        rows_reference=sum(c.rows_reference for c in comparisons),
        lost=sum(c.lost for c in comparisons),
        repeated=sum(c.repeated for c in comparisons),
        different=sum(c.different for c in comparisons),
        first_difference=min(firsts, default=None),
        lost_epochs=sorted({epoch for c in comparisons for epoch in c.lost_epochs}),
        unexpected=sum(c.unexpected for c in comparisons),
    )


def compare_sinks(run: Path, reference: Path, *, since: Epoch = FIRST_EPOCH, upto: Epoch | None = None) -> Comparison:
    """Compare the rows of ``run`` with those of ``reference``, epoch by epoch, from epoch ``since`` through ``upto``.

    Without ``upto`` the last epoch that both have reached is the end, because the tail that a stopped run did
    not get to is not loss. Pass it whenever the run was meant to get there: only then does a run that never
    recovered show as a gap instead of as a short run.

    Raises ``ValueError`` where there is nothing to judge by, rather than calling a comparison of nothing
    precise. A run without a single epoch is compared with the whole reference: everything is lost.
    """
    of_run, of_reference = epoch_files(run), epoch_files(reference)
    if not of_reference:
        raise ValueError(f"reference={str(reference)!r} holds no epoch: run the failure-free job first")
    last = upto
    if last is None:
        last = min(max(of_run), max(of_reference)) if of_run else max(of_reference)
    epochs = sorted(epoch for epoch in of_run.keys() | of_reference.keys() if since <= epoch <= last)
    if not epochs:
        raise ValueError(f"neither sink has an epoch from since={since} through upto={upto}: nothing to compare")

    rows_run = rows_reference = lost = repeated = different = unexpected = 0
    first_difference: Epoch | None = None
    lost_epochs: list[Epoch] = []
    for epoch in epochs:
        try:
            found = _compare_epoch(of_run.get(epoch, []), of_reference.get(epoch, []))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"epoch {epoch} of {run} or {reference} cannot be read: {error}") from error
        # A surplus copy of a row that is rightly there is a repeat. Only rows unknown to the reference can be
        # the altered form of a missing one.
        altered = min(found.missing, found.unknown)
        rows_run += found.rows_run
        rows_reference += found.rows_reference
        different += altered
        lost += found.missing - altered
        repeated += found.copies + found.unknown - altered
        unexpected += found.unknown - altered
        if found.missing > altered:
            lost_epochs.append(epoch)
        if first_difference is None and (found.missing or found.copies or found.unknown):
            first_difference = epoch
    return Comparison(
        epochs_compared=len(epochs),
        rows_run=rows_run,
        rows_reference=rows_reference,
        lost=lost,
        repeated=repeated,
        different=different,
        first_difference=first_difference,
        lost_epochs=lost_epochs,
        unexpected=unexpected,
    )


def _compare_epoch(run_files: list[Path], reference_files: list[Path]) -> equal_rows.Found:
    suffixes = {file.suffix for file in run_files + reference_files}
    if len(suffixes) > 1:
        raise ValueError("parquet and json in one epoch: the types of the json side would only be guesses")
    if suffixes == {".json"}:
        sides = [b"\n".join(filter(None, map(json_lines, files))) for files in (run_files, reference_files)]
        rows_run, rows_reference = (count_lines(side) for side in sides)
    else:
        tables = read_parquet(run_files), read_parquet(reference_files)
        rows_run, rows_reference = (table.num_rows for table in tables)
    if not rows_run or not rows_reference:
        return equal_rows.nothing_equal(rows_run, rows_reference)
    if suffixes == {".json"}:
        tables = read_json(sides[0], sides[1])
    return equal_rows.count(*tables)
