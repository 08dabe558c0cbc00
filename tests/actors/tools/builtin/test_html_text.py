"""HTML becomes text that can be read, whatever it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.builtin.http import MAX_HTML, declared_charset, readable

BASE = "http://x.test/a/b"


def text_of(html: str) -> str:
    return readable(html, BASE)[1]


def test_title_headings_lists_and_links_are_kept() -> None:
    title, text = readable(
        "<html><head><title> A\n page </title><style>p {}</style></head><body><h2>Top</h2>"
        "<p>One   two<br>three <a href='../c?d=1'>there</a>.</p><ul><li>x<li>y</ul>"
        "<script>if (a < b) alert('</p>')</script>&amp;&eacute;",
        BASE,
    )
    assert title == "A page"
    assert text == ("## Top\n\nOne two\nthree there <http://x.test/c?d=1>.\n\n- x\n- y\n&é")


def test_preformatted_text_keeps_its_indentation() -> None:
    assert text_of("<pre>def f():\n    return 1\n</pre>") == "def f():\n    return 1"


@pytest.mark.parametrize("target", ["#top", "javascript:alert(1)", "data:text/html,x"])
def test_links_that_lead_nowhere_are_left_out(target: str) -> None:
    assert text_of(f'<a href="{target}">x</a>') == "x"


def test_what_is_hidden_ends_where_its_own_tag_ends() -> None:
    assert text_of("a<svg><svg><text>b</text></svg>c</svg>d</svg>e") == "ade"


def test_conditional_comments_hide_nothing_else() -> None:
    assert text_of("a<!--[if IE]>b<![endif]-->c<![if !IE]>d<![endif]>e") == "acde"


def test_the_last_words_are_not_lost() -> None:
    assert text_of("<p>one &am") == "one &am"


@pytest.mark.parametrize("piece", ["<!--", "<a ", "<![", "</", "<?", "<svg>", "<x y='", "&#", "<"])
def test_a_document_made_to_be_slow_is_not(piece: str) -> None:
    text_of(piece * (MAX_HTML // 4 // len(piece)))


@given(
    st.lists(st.sampled_from(["<", ">", "a", "/", "!", "-", "[", "pre", "'", "=", "&", ";", "\0"]))
)
def test_no_document_is_refused(pieces: list[str]) -> None:
    """Law: whatever is fed, a text comes back."""
    readable("".join(pieces), BASE)


def test_a_document_may_name_its_character_set() -> None:
    assert declared_charset(b'<meta charset="Shift_JIS">') == "Shift_JIS"
    assert declared_charset(b"<META http-equiv=x content='text/html; charset=koi8-r'>") == "koi8-r"
    assert declared_charset(b"<p>charset=x") is None
