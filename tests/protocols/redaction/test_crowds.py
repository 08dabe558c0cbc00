"""Crowds of lines of one form are redacted as any other text, in a fraction of the work."""

from __future__ import annotations

import random
import re

import pytest

from motet.protocols.redaction import crowds, finders, masks, rules
from motet.protocols.redaction.own import DenyRule, OwnRules
from motet.protocols.redaction.redact import LIMIT, Redactor, redact_text, registered_secrets
from tests.protocols.redaction.builders import CORPUS, MASK, filled, key, without_marks

FORMS = (
    '{"user": "bob", "password": "{pw}", "port": {digit:4}}',
    "password={pw}",
    "client_secret: {hex:8}-{hex:4}-{hex:4}-{hex:4}-{hex:12}",
    "export SERVICE_{digit:2}_DB_PASSWORD={alnum:24}",
    '{"user": "bob", "id": {digit:4}, "password": "{alnum:16}", "port": 5432}',
    "2026-11-{digit:2}T10:20:{digit:2}.{digit:6}Z connecting to postgres://app:{alnum:16}@db/app",
    "> Authorization: Bearer {alnum:40}\n> Accept: */*",
    "the key ghp_{alnum:36} was refused",
    "2026-11-{digit:2} {digit:2}:{digit:2}:{digit:2},{digit:3} x-csrf-token: {slug:40} refused",
    'boto3.client("s3", aws_secret_access_key="{base64:40}")',
    "  user: Ym9iYm9iYm9iYm9i\n  password: {alnum:24}",
    "AWS_SECRET_ACCESS_KEY={alnum:40} AWS_ACCESS_KEY_ID=AKIA{upper:16} make",
)
OTHERS = (
    "password=env+NAME7{alnum:3}",
    "password=abc***7",
    "password=xxx#xxxxx",
    "password={alnum:6}!",
    "client_secret: 00000000-0000-0000-0000-000000000000",
    "client_secret: abcdefab-abcd-abcd-abcd-abcdefabcd12",
    "client_secret: {digit:8}-{digit:4}-{digit:4}-{digit:4}-{digit:12}",
    "password: |\n  {alnum:20}",
    "kind: Secret\ndata:",
    "password=changeme",
    "PASSWORD=AKIA{upper:16}",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi{alnum:40}.{alnum:43}",
    "kind: Secret\ndata:\n  password: {b64pw}\n",
    "token = sk-proj-{alnum:30}\\\n  {alnum:20}",
    "call me at +49 30 {digit:8}, or pay by 4111 1111 1111 1111",
    "export SERVICE_7_DB_PASSWORD=$OTHER",
    "export SERVICE_{digit:2}_DB_PASSWORD=LTAI{alnum:20}",
    "the token is sk-proj-{alnum:30}",
    "{pem:RSA PRIVATE KEY}",
    "a line of prose, with nothing in it",
    "",
)
CASES = [
    line
    for part in ("secrets.txt", "lookalikes.txt", "secrets_third.txt", "secrets_sixth.txt")
    for line in (CORPUS / part).read_text("utf-8").splitlines()
    if line and not line.startswith("# ")
]


def lines(source: random.Random, forms: list[str], size: int, others: float) -> str:
    """A text of lines of a few forms, with others between them."""
    made: list[str] = []
    length = 0
    while length < size:
        rare = OTHERS if source.random() < 0.7 else CASES
        form = source.choice(rare if source.random() < others else forms)
        made.append(without_marks(filled(form, source))[0] + "\n")
        length += len(made[-1])
    return "".join(made)


def by_finders(text: str) -> str:
    """The redacted text, all of which the finders have read, in blocks that they may read alone."""
    table, made, at = rules.rules(), "", 0
    while len(text) - at > LIMIT:
        end = text.rfind("\n", at, at + LIMIT) + 1
        while finders.is_open(table, text, end, at):
            end = text.rfind("\n", at, end - 1) + 1
        made += redact_text(text[at:end])
        at = end
    return made + redact_text(text[at:])


@pytest.mark.parametrize("seed", range(4))
def test_a_crowd_is_redacted_as_the_finders_redact_it(seed: int) -> None:
    """Law: for any mixture of forms and other lines, spans, kinds and tags are the same."""
    source = random.Random(seed)
    forms = [*source.sample(FORMS, 2), CASES[source.randrange(len(CASES))]]
    text = lines(source, forms, LIMIT + 50_000, source.choice((0.0, 0.01, 0.1)))
    assert redact_text(text) == by_finders(text)


def test_a_crowd_in_pieces_is_redacted_as_its_whole() -> None:
    source = random.Random(1)
    text = lines(source, [*FORMS], LIMIT + 50_000, 0.01)
    redactor, parts, at = Redactor(), list[str](), 0
    while at < len(text):
        size = source.choice((1, 80, 5_000, LIMIT))
        parts.append(redactor.feed(text[at : at + size]))
        at += size
    assert "".join(parts) + redactor.close() == redact_text(text)


@pytest.mark.parametrize("form", FORMS)
def test_the_finders_read_few_lines_of_a_crowd(form: str) -> None:
    source, table = random.Random(form), rules.rules()
    first, second = (lines(source, [form], 30_000, 0.0) for _ in range(2))
    learned = crowds.learn(table, first, finders.find(table, first))
    assert learned is not None
    left: list[str] = []

    def read(gaps: str) -> str:
        left.append(gaps)
        return gaps

    made = learned.masked(second, masks.masker(None), read)
    assert made is not None
    # Of those with signs in them, some begin or end with one.
    share = 4 if "{slug" in form or "{base64" in form else 20
    assert len("".join(left)) < len(second) / share
    assert len(MASK.findall("".join(made))) > second.count("\n") / 2.2


def test_a_uuid_of_digits_or_of_letters_is_left_to_the_finders() -> None:
    """They take one for a number, or for words."""
    source, table = random.Random(2), rules.rules()
    text = lines(source, ["client_secret: {hex:8}-{hex:4}-{hex:4}-{hex:4}-{hex:12}"], 20_000, 0.0)
    learned = crowds.learn(table, text, finders.find(table, text))
    assert learned is not None
    assert learned.expression.match(text) is not None
    for uuid in ("12345678-1234-1234-1234-123456789012", "abcdefab-abcd-abcd-abcd-abcdefabcd12"):
        assert redact_text(f"client_secret: {uuid}") == f"client_secret: {uuid}"
        assert learned.expression.match(f"client_secret: {uuid}\n") is None


def test_a_password_that_only_stands_for_one_is_left_to_the_finders() -> None:
    source, table = random.Random(3), rules.rules()
    text = lines(source, ["password={pw}"], 20_000, 0.0)
    learned = crowds.learn(table, text, finders.find(table, text))
    assert learned is not None
    assert learned.expression.match("password=xxxxx1#x7\n") is not None
    (stores,) = (one for one in table.file.passes_by if one.startswith("(?:vault|"))
    words = stores[3 : stores.index(")")].replace("\\+[a-z]{1,400}", "").split("|")
    assert "env" in words
    for value in (*(f"{word}+NAME7abc" for word in (*words, "Env")), "xxx#xxxxx", "abc***7xyz"):
        is_whole = value.startswith("ref+") or redact_text(f"password={value}").endswith(value)
        assert is_whole, value
        assert learned.expression.match(f"password={value}\n") is None, value


def test_lines_whose_long_numbers_differ_have_no_form() -> None:
    """Their digits may be those of a card, which are told from others by their sum."""
    source, table = random.Random(2), rules.rules()
    text = lines(source, ["{digit:4} {digit:4} {digit:4} token={alnum:24} went"], 20_000, 0.0)
    assert crowds.learn(table, text, finders.find(table, text)) is None


def test_a_form_is_proved_before_it_is_used() -> None:
    source, table = random.Random(6), rules.rules()
    text = lines(source, ["client_secret: {hex:8}-{hex:4}-{hex:4}-{hex:4}-{hex:12}"], 20_000, 0.0)
    found = finders.find(table, text)
    assert crowds.learn(table, text, found) is not None
    wrong = [(start, end, context, "another") for start, end, context, _ in found]
    assert crowds.learn(table, text, wrong) is None


@pytest.mark.parametrize(
    ("value", "mask"),
    [
        ("abc123def456ghi789jkl012 --password hunter2hunter2", "[secret:password:"),
        ("LTAI5tq7abcd5tq7abcd5tq7", "[secret:alibaba:"),
        ("XXXXXXXXXXXXXXXXXXXXXXXX", "XXXX"),
        ("abc123def456ghi789jkl012 eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.c2lnbmF0dXJl", "[secret:jwt:"),
    ],
)
def test_a_line_that_is_nearly_of_a_form_is_read_by_the_finders(value: str, mask: str) -> None:
    text = lines(random.Random(3), [FORMS[0]], LIMIT + 30_000, 0.0)
    odd = f"export SERVICE_11_DB_PASSWORD={value}\n"
    made = redact_text(text + odd + text)
    assert made == by_finders(text + odd + text)
    line = next(line for line in made.splitlines() if mask in line and "SERVICE_11_" in line)
    assert "hunter2" not in line


def test_a_line_behind_one_that_goes_on_is_read_by_the_finders() -> None:
    """In a manifest each value is a secret, and a line of a form may stand in one."""
    text = lines(random.Random(7), [FORMS[-2]], LIMIT + 30_000, 0.0)
    whole = text + "kind: Secret\ndata:\n" + text[:2_000] + "\nmetadata:\n" + text
    made = redact_text(whole)
    assert "user: Ym9i" in made
    assert "user: [secret:" in made
    assert made == by_finders(whole)


def test_secrets_and_rules_of_ones_own_are_found_in_a_crowd() -> None:
    text = lines(random.Random(4), [FORMS[3]], LIMIT + 30_000, 0.0)
    with registered_secrets(["Accept: */*"]):
        assert "Accept" not in redact_text(text)
    with registered_secrets([], own=OwnRules(deny=(DenyRule("Accept"),))):
        assert "Accept" not in redact_text(text)


def test_a_private_key_between_the_lines_of_a_crowd_is_one_secret() -> None:
    source = random.Random(5)
    text = lines(source, [FORMS[0]], LIMIT + 10_000, 0.0)
    whole = text + key("RSA PRIVATE KEY", source) + "\n" + text
    made = redact_text(whole)
    assert len(re.findall(r"\[secret:private-key:....\]\n", made)) == 1
    assert made == by_finders(whole)
