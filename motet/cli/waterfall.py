"""A trace as a tree with bars, as lines for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from motet.cli.render import cut, one_line
from motet.protocols.models import Usage
from motet.protocols.traces import Span, Trace

BAR = 21
NAME = 24
_LABELS = {"agent": "run", "model": "chat", "tool": "tool", "store": ""}


@attrs.frozen
class Line:
    """``branch`` is the drawing that leads to the span, ``bar`` its place in time."""

    branch: str
    span: Span
    bar: str


def header(trace: Trace) -> str:
    """The run in one line, with the sums of all below it."""
    info, usage = trace.info, total(trace)
    errors = sum(span.status == "error" and span.kind in ("model", "tool") for span in trace.spans)
    parts = [
        *(info.run_id, one_line(info.agent), f"user:{one_line(info.user)}", info.status),
        seconds(info.ended - info.started) if info.ended is not None else "still running",
        *([f"{usage.total_tokens:,} tok"] if usage.total_tokens else []),
        *([money(usage.cost)] if usage.cost else []),
        *([f"{errors} error{'s' * (errors != 1)}"] if errors else []),
        *([f"{info.left_out} spans left out"] if info.left_out else []),
    ]
    return "  ".join(parts)


def total(trace: Trace) -> Usage:
    """Sum of the model spans, those of runs below included."""
    return sum((span.usage for span in trace.spans if span.usage), Usage())


def tree(trace: Trace, now: float) -> list[Line]:
    """Every span but the root below its parent, in the order of their starts."""
    spans = {span.id: span for span in trace.spans}
    own = next((span for span in trace.spans if span.parent not in spans), None)
    if own is None:
        return []
    end = max((span.ended or now for span in trace.spans), default=now)
    below: dict[str | None, list[Span]] = {}
    for span in trace.spans:
        if span is not own:
            below.setdefault(span.parent if span.parent in spans else own.id, []).append(span)
    return list(_lines(own.id, below, "", own.started, end, now))


def _lines(
    at: str,
    below: dict[str | None, list[Span]],
    indent: str,
    start: float,
    end: float,
    now: float,
) -> Iterator[Line]:
    parts = below.get(at, [])
    for number, span in enumerate(parts, 1):
        last = number == len(parts)
        bar = bar_of(span.started, span.ended or now, start, end)
        yield Line(f"{indent}{'└' if last else '├'} ", span, bar)
        further = indent + ("  " if last else "│ ")
        yield from _lines(span.id, below, further, start, end, now)


def bar_of(started: float, ended: float, start: float, end: float, width: int = BAR) -> str:
    """A row of dots in which the time of a span is filled; at least one of them."""
    unit = (end - start) / width or 1.0
    first = min(max(int((started - start) / unit), 0), width - 1)
    last = min(max(round((ended - start) / unit), first + 1), width)
    return "·" * first + "█" * (last - first) + "·" * (width - last)


def label(span: Span) -> str:
    """``chat gpt-5.2``, ``tool read_log``, ``error_store.store``."""
    return f"{_LABELS[span.kind]} {one_line(span.name)}".strip()


def notes(span: Span) -> str:
    """Other facts about a span, in a few words."""
    usage = span.usage
    found = [
        span.agent,
        span.purpose,
        f"{usage.input_tokens}→{usage.output_tokens}" if usage else "",
        money(usage.cost) if usage and usage.cost else "",
        f"first token {seconds(span.first_token)}" if span.first_token is not None else "",
        f"{span.attempts} attempts" if span.attempts > 1 else "",
        span.error_id or "",
        span.error if span.status == "error" else "",
        span.outcome if span.outcome == "denied" else "",
        span.status if span.status not in ("ok", "error") else "",
    ]
    return "  ".join(one_line(part) for part in found if part)


def seconds(value: float) -> str:
    """``6ms``, ``0.92s``, ``3m 05s``."""
    if value < 0.0995:
        return f"{value * 1000:.0f}ms"
    if value < 60:
        return f"{value:.2f}s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}m {rest:02}s"


def money(dollars: float) -> str:
    return f"${dollars:.4f}" if dollars < 1 else f"${dollars:,.2f}"


_STYLES = {
    "error": "red",
    "cancelled": "dim",
    "interrupted": "yellow",
    "limited": "yellow",
    "refused": "yellow",
}


def drawn(trace: Trace, now: float, *, bars: bool) -> list[tuple[str, str]]:
    """The whole trace as lines with their styles; without bars, spans show their results."""
    lines = tree(trace, now)
    width = max((len(line.branch) + min(len(label(line.span)), NAME) for line in lines), default=0)
    found = [(header(trace), "bold")]
    for line in lines:
        span = line.span
        name = cut(label(span), NAME)
        took = seconds((span.ended if span.ended is not None else now) - span.started)
        bar = f"{line.bar}  " if bars else ""
        text = f"{line.branch + name:<{width}}  {bar}{took:>7}  {notes(span)}".rstrip()
        found.append((text, _STYLES.get(span.status, "")))
        if not bars and span.output:
            inner = line.branch.replace("├", "│").replace("└", " ")
            found.append((f"{inner}  {cut(one_line(span.output), 100)}", "dim"))
    return found
