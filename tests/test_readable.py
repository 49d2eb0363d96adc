"""Descriptors are waited for whatever their numbers are."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from ranonce.readable import readable


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose reading end has a number that select(2) does not know."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("this user may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, 2000)
    yield high, writing
    for fd in {reading, high, writing}:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_beyond_1024_is_waited_for_like_any_other(pipe):
    reading, writing = pipe
    assert readable([reading], 0) == set()
    assert readable([reading], -1) == set()
    os.write(writing, b".")
    assert readable([reading], 10) == {reading}


def test_nothing_waits_by_a_call_that_knows_1024_descriptors():
    import ranonce

    folder = os.path.dirname(ranonce.__file__)
    for above, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                with open(os.path.join(above, name), encoding="utf-8") as file:
                    assert "select.select(" not in file.read(), name
