"""What an audit of a model is about to cost beyond embedding the sets, said before it is spent."""

from __future__ import annotations

from vicinal.audits.entangled_layers import HISTORY_ROWS
from vicinal.audits.settings import AuditSettings
from vicinal.audits.stress import EXTENTS


def costs(
    settings: AuditSettings, support: int | None, query: int | None, checkpoints: int = 0
) -> list[str]:
    """One sentence each for the network's own view, the stress and the checkpoints.

    Parameters
    ----------
    settings : what was asked for.
    support, query : rows of the sets; None where they are not known before they are read.
    checkpoints : how many of them.

    >>> costs(AuditSettings(stress="none", network_rows=0), 900, 300, 2)
    ['checkpoints: 2 of 500 rows each']
    """
    lines = []
    if settings.network_rows >= 2:
        n, m = (min(settings.network_rows, s or settings.network_rows) for s in (support, query))
        lines.append(
            f"network view: {n + m:,} rows forward and, for each output, backward "
            "(from Python, AuditSettings(network_rows=0): none)"
        )
    if settings.stress != "none":
        extent, total = EXTENTS[settings.stress], (support or 0) + (query or 0)
        rows = extent.most_rows if query is None else extent.rows(query, total)
        lines.append(
            f"stress, where the inputs are images: {extent.cost(rows, total)} (--no-stress: none)"
        )
    if checkpoints:
        each = HISTORY_ROWS if support is None else min(HISTORY_ROWS, support)
        lines.append(f"checkpoints: {checkpoints} of {each:,} rows each")
    return lines
