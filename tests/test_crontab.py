"""The line that `add` prints."""

from __future__ import annotations

import pytest

from ranonce.crontab import crontab_line
from ranonce.windows import Schedule


@pytest.mark.parametrize(
    ("every", "when"),
    [
        ("hour", "0 * * * *"),
        ("day", "0 0 * * *"),
        ("week", "0 0 * * 1"),
        ("month", "0 0 1 * *"),
        ("30 2 * * 1-5", "30 2 * * 1-5"),
    ],
)
def test_it_fires_when_the_window_begins(every, when):
    line = crontab_line(Schedule(every), ["/usr/bin/ranonce"], "job", config=None)
    assert line == f"{when} /usr/bin/ranonce run job --receipt problems"


def test_what_cron_would_not_find_by_itself_is_said():
    line = crontab_line(Schedule("day"), ["/opt/x y/ranonce"], "job", config="/etc/50%.toml", state_home="/srv/state")
    assert line == (
        "0 0 * * * XDG_STATE_HOME=/srv/state '/opt/x y/ranonce' run job --receipt problems --config /etc/50\\%.toml"
    )
