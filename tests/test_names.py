"""Names of jobs, gates and destinations."""

from __future__ import annotations

import pytest

from ranonce.errors import UsageError
from ranonce.names import check_job_name, check_name, shown_path


@pytest.mark.parametrize("name", ["a", "7", "nightly-report", "db.backup_2", "A" * 100])
def test_a_name_of_the_allowed_characters_comes_back_unchanged(name: str) -> None:
    assert check_job_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "-a",
        ".a",
        "_a",
        "../a",
        "a/b",
        "a\n",
        "a\r\nb",
        'A","event":"done',
        ".*",
        "[",
        "a:b",
        "a\0b",
        "\x1b[2Jx",
        "nächtlich",
        "٣",
        "ａ",
        "🦊",
        "a\udcff",
        "a\u2028b",
        "A" * 101,
        "x" * 9000,
    ],
)
def test_every_other_name_is_refused_with_an_escaped_and_short_sentence(name: str) -> None:
    with pytest.raises(UsageError) as refusal:
        check_job_name(name)
    assert refusal.value.exit_status == 64
    assert refusal.value.sentence.isprintable()
    assert len(refusal.value.sentence) < 200
    assert "A-Z" in refusal.value.next_step


def test_what_is_not_text_is_no_name() -> None:
    with pytest.raises(UsageError):
        check_job_name(7)  # type: ignore[arg-type]


def test_the_sentence_says_what_the_name_is_for() -> None:
    with pytest.raises(UsageError, match="is not a name for a gate"):
        check_name("gate", "a b")


def test_a_path_with_control_characters_is_shown_escaped() -> None:
    assert shown_path("/etc/ranonce.toml") == "/etc/ranonce.toml"
    assert shown_path("/x\x1b[2J") == "'/x\\x1b[2J'"
