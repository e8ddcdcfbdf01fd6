"""Which batches a job accepts, by its own report: its terms are used only where they make sense."""

from __future__ import annotations

from ones.daemon.wire import Report
from ones.policies.model import Batch


def batch_terms(report: Report, *, least: int) -> tuple[Batch | None, str]:
    """The terms of a job that runs on `least` GPUs or more, and what is wrong with them.

    None with nothing wrong: the report doesn't tell them.
    """
    submitted, most, per_gpu = (
        report.batch_submitted,
        report.batch_most,
        report.batch_most_per_gpu,
    )
    if not (submitted and most and per_gpu):
        return None, ""
    if submitted > most:
        return None, f"its batch_submitted {submitted} is more than its batch_most {most}"
    if least > most:
        return None, f"its batch_most {most} is less than a sample on each of {least} GPUs"
    # Where the submitted batch doesn't fit in the fewest GPUs, a smaller one must be let pass, or
    # the job could not run there at all.
    holds = submitted <= least * per_gpu
    return (
        Batch(
            submitted=submitted,
            most=most,
            most_per_gpu=per_gpu,
            initial=submitted if holds else None,
            tunes=report.tunes,
        ),
        "",
    )
