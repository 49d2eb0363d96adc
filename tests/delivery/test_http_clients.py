"""The measurement of HTTP clients: whether it measures what it says. How fast anything is, is not asked here."""

from __future__ import annotations

import pytest
from benchmarks.http_clients import IN_FLIGHT, main, rates


def test_each_client_is_measured_with_one_and_with_sixteen_in_flight() -> None:
    found = rates(requests=32, rounds=2)
    assert {(name, count) for name in ("http.client", "ours") for count in IN_FLIGHT} <= set(found)
    assert all(len(of) == 2 and min(of) > 0 for of in found.values())


def test_each_line_is_a_rate_and_its_ratio_to_the_plain_client(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "32", "--rounds", "1"]) == 0
    first = capsys.readouterr().out.splitlines()[0].split()
    assert first[0] == "http.client" and first[-1] == "1.00"
