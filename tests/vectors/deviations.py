"""The table of deviations: where the specification decides otherwise than a vector.

A rule is asked only when a case is not as expected.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tests.vectors import predicates
from tests.vectors.cases import Case, Facts


@attrs.frozen
class Rule:
    """``decided`` quotes the line of the specification; ``applies`` sees the case and the facts."""

    area: str
    decided: str
    applies: Callable[[Case, Facts], bool]


def decision(case: Case, facts: Facts) -> str | None:
    """The line that decides for what the code does, if one does."""
    return next((r.decided for r in RULES if r.area == case.area and r.applies(case, facts)), None)


RULES = (
    Rule(
        "credential_scrub",
        'guide-errors.md, "Secrets": masks tell secrets apart, as in [secret:aws:1f3a]',
        predicates.names_the_secret,
    ),
    Rule(
        "error store store/get/list filters",
        'errors.md 2: "raw_error is valid JSON: an object as it is, anything else wrapped once"',
        predicates.wraps_other_json,
    ),
    Rule(
        "tool result formatting",
        'guarantees.md G8: "index i holds the outcome of call i"; '
        'errors.md 4: a repeated failing call "adds advice to the result"',
        predicates.runs_every_call,
    ),
    Rule(
        "tool result formatting",
        'errors.md 2: "the text cut at 500 code points in all"',
        predicates.counts_what_is_missing,
    ),
    Rule(
        "get_error_detail errors",
        'errors.md 2: get_error_detail is "advertised from the start (a stable tool list ...)"',
        predicates.advertises_always,
    ),
    Rule(
        "shared memory/get_tool_result",
        'errors.md 3: "a result over 16,384 bytes of UTF-8 is stored"',
        predicates.other_threshold,
    ),
    Rule(
        "error tracker escalation",
        'errors.md 4: "Denials and gate skips do not count; cancelled calls do not count"',
        predicates.does_not_count,
    ),
    Rule(
        "error tracker escalation",
        'guide-errors.md, "Classes of failures": an unknown tool is the model\'s mistake; it earns '
        "advice, and loops are detected, but only faults of tools count",
        predicates.is_no_fault,
    ),
    Rule(
        "extra: circuit breaker",
        'errors.md 4: "30 s doubling to 10 min"',
        predicates.higher_cap,
    ),
    Rule(
        "error strategy table",
        "errors.md 2: three lines for the model, `Tool 'X' failed: <summary>` first",
        predicates.in_three_lines,
    ),
    Rule(
        "error strategy table",
        'errors.md 1: "not found lists the available tools"',
        predicates.lists_what_there_is,
    ),
    Rule(
        "event_order",
        'agent-loop.md 13: "`tool.result` comes when that tool ends"',
        predicates.in_the_order_of_their_ends,
    ),
    Rule(
        "context compaction",
        'errors.md 1: "Context-too-long: compact, retry once"; agent-loop.md 6: 0.75 of the '
        "window, about 30 % kept",
        predicates.same_marks,
    ),
    Rule(
        "context compaction",
        'agent-loop.md 5: cleared "when the prunable results sum to 50,000 characters or more"',
        predicates.little_to_clear,
    ),
    Rule(
        "extra: segmented memory",
        'agent-loop.md 4: "A summary is injected as a user row"',
        predicates.summary_of_a_user,
    ),
    Rule(
        "extra: segmented memory",
        'agent-loop.md 6: "more than 50 messages or more than 0.75 of the window"',
        predicates.short,
    ),
    *(
        Rule(area, predicates.REASONING_GOES, predicates.hides_reasoning)
        for area in ("sanitize", "sanitize_steps")
    ),
    *(
        Rule(area, predicates.GARBLED, predicates.only_calls)
        for area in ("sanitize", "sanitize_steps")
    ),
    *(
        Rule(area, predicates.WHOLE_CALLS, predicates.takes_all_of_a_call)
        for area in ("sanitize", "sanitize_steps")
    ),
    *(
        Rule(area, predicates.CODE_STAYS, predicates.keeps_code)
        for area in ("sanitize", "sanitize_steps")
    ),
    *(
        Rule(area, predicates.EIGHT, predicates.only_trims)
        for area in ("message_directives_later", "config_leak")
    ),
    Rule(
        "silent_reply",
        'agent-loop.md 3: "silent when the whole reply, decorations peeled off, is the token, '
        'without case"',
        predicates.decorated,
    ),
    Rule(
        "silent_reply",
        'agent-loop.md 3: "silent when the whole reply ... is the token ...; a real answer that '
        'mentions it is delivered"',
        predicates.more_than_the_token,
    ),
    Rule(
        "input_guard_action",
        'agent-loop.md 2: "an unknown word is a configuration error"',
        predicates.refuses_the_word,
    ),
    Rule(
        "input_guard_action",
        'agent-loop.md 2: "the sender is told why"',
        predicates.tells_the_sender,
    ),
    Rule(
        "input_guard_action",
        'agent-loop.md 2: "A blocked message\'s text is not broadcast, and the sender is told why"',
        predicates.says_nothing_of_it,
    ),
    Rule(
        "preview_limits",
        'agent-loop.md 13: "Previews: argument strings 500, results 1,000 characters"',
        predicates.cuts_every_result,
    ),
    Rule(
        "message_truncation",
        'agent-loop.md 1: "truncation at `max_message_chars` = 32,768 **code points** with a '
        'notice after the kept part"',
        predicates.counts_code_points,
    ),
    Rule(
        "pipeline_later",
        'agent-loop.md 1: every call has "exactly one result, whatever happens"',
        predicates.answers_each_call,
    ),
    Rule(
        "pipeline_later",
        'agent-loop.md 9: "argument check against the schema before the call, all problems named"',
        predicates.checks_arguments,
    ),
    Rule(
        "pipeline_later",
        'agent-loop.md 10: "tools are withdrawn and the model gets one closing turn"',
        predicates.closes,
    ),
    Rule(
        "pipeline_later",
        'agent-loop.md 6: "If the model fails, an extractive summary"',
        predicates.sums_up_without_a_model,
    ),
    Rule(
        "pipeline_later",
        'agent-loop.md 6: "when prompt tokens reach 0.75 of the window"',
        predicates.compacts_early,
    ),
    Rule("pipeline_later", 'agent-loop.md 5: "Below 0.3: nothing"', predicates.prunes_early),
    Rule(
        "abort_scenarios",
        'agent-loop.md 1: "The slot is free only when the run has ended"',
        predicates.waits_for_its_end,
    ),
    Rule(
        "ownership_fence",
        'agent-loop.md 1: "The slot is free only when the run has ended"',
        predicates.owns_until_it_ends,
    ),
    Rule(
        "event_order",
        'agent-loop.md 2: "A blocked message\'s text is not broadcast, and the sender is told why"',
        predicates.tells_the_sender_only,
    ),
    Rule(
        "prune",
        "agent-loop.md 5: the ratio alone decides; no mode switches it on",
        predicates.any_mode,
    ),
    Rule("prune", 'agent-loop.md 5: "only if that makes them shorter"', predicates.would_grow),
    Rule(
        "prune", 'agent-loop.md 5: an important tail "gets 70 % of the room"', predicates.important
    ),
    Rule(
        "prune",
        "agent-loop.md 9: what is unknown in it is a configuration error",
        predicates.refused_history,
    ),
    Rule(
        "cache_ttl_parse",
        "agent-loop.md 9: as in all configuration, an error",
        predicates.refused_history,
    ),
    Rule(
        "memory_flush",
        'agent-loop.md 6: "once per compaction cycle (the first cycle included)"',
        predicates.first_cycle,
    ),
    Rule(
        "post_run_compaction",
        'agent-loop.md 6: "rows that arrived meanwhile are never lost"',
        predicates.keeps_what_came,
    ),
    Rule(
        "mid_loop_split",
        'agent-loop.md 6: "if nothing is left to summarise, cut inside the current turn"',
        predicates.at_a_batch,
    ),
    Rule(
        "virtual_compaction",
        'agent-loop.md 6: "a split never separates a call from its results (walk back ...)"',
        predicates.walks_back,
    ),
    Rule(
        "sanitize_history",
        "guarantees.md G8: results by call index, whatever came first",
        predicates.by_call_index,
    ),
    Rule(
        "estimate_tokens", 'agent-loop.md 5: "call arguments included"', predicates.with_arguments
    ),
    Rule("truncate_str", "agent-loop.md 1: lengths are code points", predicates.in_code_points),
    Rule(
        "path_segment",
        'agent-loop.md 11: "folders from a reversible escape, never a lossy one"',
        predicates.reads_back,
    ),
    Rule(
        "seeding_and_bootstrap",
        'agent-loop.md 1: "done means written, not row inserted: a failed seeding is tried again"',
        predicates.is_good,
    ),
    Rule(
        "tool_policy",
        'agent-loop.md 9: "an unknown name is a configuration error with the nearest known one"',
        predicates.refuses_unknown_names,
    ),
    Rule(
        "tool_policy", 'agent-loop.md 9: "`deny` wins over everything"', predicates.only_takes_away
    ),
    Rule(
        "rbac",
        'gateway.md 1: "unknown method -> `unknown_method`", for every role; 3: the methods',
        predicates.is_nobodys,
    ),
    Rule(
        "rbac",
        'gateway.md 2: "roles `viewer|operator|admin`, bound to one user"',
        predicates.has_a_role,
    ),
    Rule(
        "subagents",
        'agent-loop.md 9: "Sub-agents inherit the parent\'s denials"',
        predicates.has_what_its_caller_has,
    ),
    Rule(
        "subagents", 'agent-loop.md 12: "depth 1 by default (at most 5)"', predicates.starts_no_more
    ),
    Rule(
        "subagents",
        'agent-loop.md 12: "results announced once, in order, survive a restart"',
        predicates.tells,
    ),
    Rule(
        "scheduler_scenarios",
        'agent-loop.md 11: "Debounce per sender 1,000 ms, emptied by `/stopall`"; "works while a '
        'run is stuck"; guarantees.md G1: who cancels waits for the clean-up',
        predicates.is_good_queues,
    ),
    Rule(
        "scheduler_scenarios",
        'agent-loop.md 11: "Capacity 10, policy declared", "Debounce per sender 1,000 ms", and no '
        "lanes: the order belongs to the session",
        predicates.has_other_defaults,
    ),
    Rule("intent_quick", predicates.BARE, predicates.says_more),
    Rule("intent_quick", predicates.QUEUE, predicates.is_a_question),
    Rule("intent_exact_cancel_later", predicates.BARE, predicates.has_a_full_stop),
    Rule(
        "stop_commands",
        'agent-loop.md 11: "`/stop` (own newest run; in a group only one\'s own unless operator)"',
        predicates.own_newest,
    ),
    Rule(
        "stop_commands",
        'agent-loop.md 12: "Children are runs under the parent\'s scope and budget"',
        predicates.ends_children,
    ),
    Rule(
        "gateway_frames",
        'gateway.md 2: "refuses a non-loopback listen address without any token": without one it '
        "is the person at this machine, who is its admin",
        predicates.is_this_machines,
    ),
    Rule(
        "gateway_frames",
        'gateway.md 2: "roles ... bound to **one user**"; 6: "`connect` failures": a wrong token '
        "is nobody's, and no viewer's",
        predicates.lets_nobody_in,
    ),
    Rule(
        "tool_loop",
        'agent-loop.md 10: "3 = warning to the model", "5 = critical": the words are ours',
        predicates.other_words,
    ),
    Rule(
        "tool_loop_later",
        'agent-loop.md 10: "A streak of reads with few distinct targets 8 / 12"',
        predicates.many_are_no_loop,
    ),
)
