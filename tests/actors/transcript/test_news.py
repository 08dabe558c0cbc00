"""What a transcript says of children, however little of it was left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.transcript.grammar import (
    EndedChild,
    child_notice,
    close_calls,
    injected_row,
    recovered_rows,
    stopped_row,
    unreported_children,
    violations,
    with_unreported_children,
)
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage

CHILDREN = st.lists(
    st.builds(
        EndedChild,
        st.integers(0, 10**6).map(lambda n: f"run_{n}"),
        st.sampled_from(["worker", "scout"]),
        st.sampled_from(["completed", "limited", "cancelled", "interrupted"]),
        st.sampled_from(["", "found it", "(run_1): completed"]),
        st.sampled_from(["", "turns", "the host stopped"]),
    ),
    max_size=4,
    unique_by=lambda one: one.run_id,
)


def transcript(children: list[EndedChild], told: int) -> list[ChatMessage]:
    """A run that started them all and was told of the first ``told``."""
    calls = tuple(Call(f"c{n}", "spawn") for n in range(len(children)))
    started = [
        ToolMessage(call.id, "spawn", f"Started {one.agent} ({one.run_id}). More comes by itself.")
        for call, one in zip(calls, children, strict=True)
    ]
    rows: list[ChatMessage] = [UserMessage("go"), AssistantMessage("", calls), *started]
    if told:
        rows.append(injected_row([child_notice(one) for one in children[:told]]))
        rows.append(AssistantMessage("I see"))
    return rows


@given(CHILDREN, st.integers(0, 4), st.integers(1, 9))
def test_a_cut_transcript_tells_once_of_each_child(
    children: list[EndedChild], told: int, kept: int
) -> None:
    """Law: whatever part of a journal is left, what is made of it is valid, and says of each child
    once what became of it; those that had something to say are quoted."""
    rows = [*close_calls(transcript(children, told)[:kept], "unknown")]
    if not isinstance(rows[-1], AssistantMessage) or rows[-1].calls:
        rows.append(AssistantMessage("[Interrupted]", note="interrupted"))
    whole = recovered_rows(rows, children)
    assert violations(whole) == ()
    text = "\n".join(row.text for row in whole if not isinstance(row, ToolMessage))
    for one in children:
        assert text.count(f"{one.head}") == 1
        assert not one.output or f"{one.head}]\n{one.output}" in text


@given(CHILDREN, st.integers(0, 4))
def test_what_the_model_was_shown_is_not_said_again(children: list[EndedChild], told: int) -> None:
    """Law: untold and told are all of them, and a closed transcript names exactly the untold."""
    rows = transcript(children, told)
    late = unreported_children(rows, children)
    assert late == tuple(children[told:])
    end = with_unreported_children([*rows[:-1], stopped_row("")], late)[-1].text
    assert end.count("\n- ") == len(late)


def test_without_children_nothing_changes() -> None:
    rows = (UserMessage("go"), AssistantMessage("done"))
    assert with_unreported_children(rows, ()) == rows
    assert recovered_rows(rows, ()) == rows
    assert with_unreported_children((), [EndedChild("run_1", "worker", "cancelled")]) == ()
