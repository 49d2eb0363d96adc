"""Look whether the keys of a ledger in Redis fit each other: every record is in its indexes, and nothing else is."""

from __future__ import annotations

from ranonce.errors import NotThisLedger
from ranonce.stores.redis.chapters import Wanted, chapters
from ranonce.stores.redis.keys import KINDS, PAGE, key_of, number_of, place_of, plain, text_of
from ranonce.stores.redis.plan import WAITING, WORK
from ranonce.stores.redis.rows import named
from ranonce.stores.redis.wrong import wrong

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.lifecycle import Run
    from ranonce.stores.redis.chapters import Chapter
    from ranonce.stores.redis.store import RedisStore

#: So many problems are told; who has more needs no list of them.
SHOWN = 20
#: Of a hundred thousand jobs that change all the time, some counts differ for a moment: they are looked at again.
LOOKS = 3
TYPES = {"h": b"hash", "z": b"zset", "l": b"list"}
OF_A_JOB = (
    *("schedules", "runs", "order", "notable", "waiting", "leases", "work", "besides", "tombstones"),
    *("steps", "results", "emitted", "undelivered"),
)
OF_A_DESTINATION = ("pending", "sending", "aside")


def problems(store: RedisStore, *, deep: bool) -> list[str]:
    """Return what does not fit, worst first."""
    found: list[str] = []
    try:
        found += [*_types(store), *_counts(store)]
        if not found:
            found += wrong(store, deep=deep)
        if deep and not found:
            found += _deep(store)
    except NotThisLedger as error:
        found.append(error.sentence)
    return found[:SHOWN]


def _types(store: RedisStore) -> Iterator[str]:
    names = [store.keys(what) for what in KINDS if what not in (*OF_A_JOB, *OF_A_DESTINATION)]
    names += [store.keys(what, job.name) for job in store.jobs() for what in OF_A_JOB]
    if store.connection.ask(("TYPE", store.keys("destinations")))[0] == b"hash":
        known = map(text_of, store.connection.ask(("HKEYS", store.keys("destinations")))[0])
        names += [store.keys(what, destination) for destination in known for what in OF_A_DESTINATION]
    for first in range(0, len(names), 1000):
        part = names[first : first + 1000]
        found = store.connection.ask(*(("TYPE", name) for name in part))
        for name, kind in zip(part, found, strict=True):
            if kind not in (b"none", TYPES[store.keys.kind(name)]):
                yield f"{name!r} is a {kind.decode('utf-8', 'replace')}"


def _counts(store: RedisStore) -> list[str]:
    """Compare how many there are of everything. A job that was declared a moment ago is counted at the next look."""
    found: list[str] = []
    for _ in range(LOOKS):
        found = list(_counted(store))
        if not found:
            break
    return found


def _counted(store: RedisStore) -> Iterator[str]:
    jobs = [job.name for job in store.jobs()]
    keys = [store.keys(what) for what in ("ledger", "events", "pages", "fill", "jobs", "versions")]
    keys += [store.keys(what, job) for job in jobs for what in ("runs", "order", "work", "besides")]
    answer = store.rows.checked(store.connection.ask_script(named("counts"), keys, store.identity().ledger))
    _, events, indexed, filled, pages, fill, known, versions, odd = answer
    if events != indexed:
        yield f"there are {events:,} events, and {indexed:,} in the indexes of the jobs"
    if events != filled:
        yield f"there are {events:,} events, and {filled:,} in the pages of their numbers"
    if pages != fill:
        yield f"there are {pages:,} pages of numbers, and {fill:,} counts of what is in them"
    if known != versions:
        yield f"there are {known:,} jobs, and {versions:,} versions of jobs"
    for number in odd:
        yield f"the job {jobs[number]!r} has not as many runs as places in its order"


def _deep(store: RedisStore) -> Iterator[str]:
    pages: set[int] = set()
    for job in store.jobs():
        for chapter in chapters(store.rows, job.name, Wanted(indexes=True)):
            yield from _of_runs(chapter)
            for event in chapter.events:
                pages.add((event.seq or 0) // PAGE)
                if event.key.job != chapter.job or (event.event in WORK) != (event.seq in chapter.work):
                    yield f"event {event.seq} ({event.event} of {event.key}) stands in an index where it should not"
    there = {number_of(page) for page in store.connection.ask(("ZRANGE", store.keys("pages"), 0, -1))[0]}
    for page in sorted(pages - there):
        if store.rows.page(page):  # else it was pruned meanwhile
            yield f"events {page * PAGE} to {page * PAGE + PAGE - 1} are in no page of numbers"


def _of_runs(chapter: Chapter) -> Iterator[str]:
    def places(runs: Iterator[Run]) -> set[bytes]:
        return {place_of(run.key, run.window_start).encode("utf-8", "surrogatepass") for run in runs}

    notable = places(run for run in chapter.runs if not plain(run))
    waiting = places(run for run in chapter.runs if run.status in WAITING)
    for name, wanted, there in (("notable", notable, chapter.notable), ("waiting", waiting, chapter.waiting)):
        for place in sorted(wanted.symmetric_difference(there)):
            key, says = key_of(chapter.job, place), "not " if place in wanted else ""
            yield f"{key} is told by its index to be {says}{name}, and its record says otherwise"
