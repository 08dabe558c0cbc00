"""Which adapter serves which area."""

from __future__ import annotations

from collections.abc import Mapping

from tests.vectors import (
    areas_compact,
    areas_errors,
    areas_history,
    areas_host,
    areas_loops,
    areas_prompt,
    areas_results,
    areas_text,
)
from tests.vectors.cases import Adapter

ADAPTERS: Mapping[str, Adapter] = {
    "summary extraction": areas_errors.summary,
    "error id": areas_errors.error_id,
    "error store store/get/list filters": areas_errors.store,
    "tool result formatting": areas_errors.formatting,
    "get_error_detail errors": areas_errors.detail,
    "shared memory/get_tool_result": areas_results.results,
    "compact error formatting + categories": areas_compact.compact,
    "error tracker escalation": areas_compact.tracker,
    "context compaction": areas_compact.context,
    "error strategy table": areas_host.strategy,
    "extra: circuit breaker": areas_compact.breaker,
    "extra: PII redaction": areas_compact.redaction,
    "tool_loop": areas_loops.same_call,
    "tool_loop_later": areas_loops.detectors,
    "stable_json": areas_loops.canonical,
    "sanitize": areas_text.answer,
    "sanitize_steps": areas_text.step,
    "message_directives_later": areas_text.answer,
    "silent_reply": areas_text.silence,
    "config_leak": areas_text.answer,
    "input_guard": areas_text.guard,
    "input_guard_action": areas_text.action,
    "message_truncation": areas_text.truncation,
    "credential_scrub": areas_text.secrets,
    "preview_limits": areas_text.preview,
    "seeding_and_bootstrap": areas_prompt.seeding,
    "workspace_sharing": areas_prompt.sharing,
    "path_segment": areas_prompt.segment,
    "router": areas_prompt.router,
    "session_keys": areas_prompt.session_keys,
    "limit_history_turns": areas_history.limited,
    "sanitize_history": areas_history.repaired,
    "sanitize_history_interleaved": areas_history.repaired,
    "prune": areas_history.pruned,
    "assistant_cutoff": areas_history.cutoff,
    "take_head_tail": areas_history.head_or_tail,
    "truncate_str": areas_history.shortened,
    "estimate_tokens": areas_history.tokens,
    "mid_loop_split": areas_history.split,
    "tool_chain_split_index": areas_history.chain_split,
    "tool_call_id_uniquify": areas_history.own_ids,
    "summary_budget_later": areas_history.budget,
    "important_tail_later": areas_history.tail_matters,
    "virtual_compaction": areas_history.pointer,
    "pipeline_later": areas_history.pipeline,
    "memory_flush": areas_history.flush,
    "post_run_compaction": areas_history.after_run,
    "cache_ttl_parse": areas_history.cache_ttl,
}
"""Areas that are not here belong to later work."""
