"""One function per chart: a section of the record in, a :class:`~vicinal.report.svg.Figure` out."""
