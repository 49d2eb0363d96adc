"""Several processes that work on windows of one job at once, for `ranonce backfill --parallel`.

They are forked before anything is opened, since a connection to a store must never cross a fork, and wait for their
first window before they open anything themselves. This process alone decides which window comes next and gives the
receipts. Each member has a process group of its own, so that a signal from the keyboard comes once, from here; should
this process be killed, a member is told to end, and stops what it works on.
"""

from __future__ import annotations

import json
import os
from functools import partial

from ranonce.backfill import ends_the_walk
from ranonce.cli.invoking import carry_out
from ranonce.errors import RanonceError
from ranonce.lifecycle import RunKey
from ranonce.receipts import Receipt
from ranonce.spawn import die_with
from ranonce.terms import Order, Result
from ranonce.windows import Window
from ranonce.wrap import work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO, Any, NoReturn, Self

    from ranonce.backfill import Place, Tally
    from ranonce.cli.invoking import Call
    from ranonce.cli.options import Command, Parsed


class MemberFailed(RanonceError):
    """What a member of the crew met before it could work on its window."""

    code = "member-failed"

    def __init__(self, sentence: str, next_step: str, exit_status: int = 1) -> None:
        super().__init__(sentence, next_step)
        self.exit_status = exit_status


class Crew:
    """So many processes that wait for windows; a context manager that ends when they have ended."""

    def __init__(self, size: int, command: Command, parsed: Parsed, environ: Mapping[str, str]) -> None:
        self._members: list[_Member] = []
        self._size = size
        self._about = (command, parsed, environ)

    def __enter__(self) -> Self:
        for _ in range(self._size):
            self._members.append(_Member(self._members, *self._about))
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            member.dismiss()
        for member in self._members:
            member.wait()

    def work(self, call: Call, tally: Tally, orders: Iterator[tuple[Place, Order]]) -> None:
        """Have the windows worked on, as many at once as there are members, until an end is met.

        Raises MemberFailed once all others have ended.
        """
        idle = list(self._members)
        busy: dict[_Member, tuple[Place, Order]] = {}
        answered: list[_Member] = []
        failure: MemberFailed | None = None
        over = told = False
        while True:
            while idle and not over and failure is None and call.signals.first is None:
                following = next(orders, None)
                if following is None:
                    over = True
                    break
                member = idle.pop(0)
                busy[member] = following
                member.give(following[1])
                call.signals.when_readable(member.answers, partial(answered.append, member))
            if not busy:
                break
            if call.signals.first is not None and not told:
                told = True
                for member in busy:
                    member.signal(call.signals.first)
            call.signals.wait(None)
            for member in answered:
                place, order = busy.pop(member)
                try:
                    result = member.result(order)
                except MemberFailed as error:
                    failure = failure or error
                    continue
                idle.append(member)
                call.receipts.write(result.receipt.replace(progress=f"{place.number}/{tally.total}"))
                tally.add(place, result)
                if ends_the_walk(place, result, overlap=call.invocation.spec.overlap):
                    over = True
                    tally.end(place, result.receipt)
            answered.clear()
        if failure is not None:
            raise failure


class _Member:
    """One process of the crew, seen from the one that leads it."""

    def __init__(self, before: list[_Member], command: Command, parsed: Parsed, environ: Mapping[str, str]) -> None:
        orders_read, orders_write = os.pipe()
        answers_read, answers_write = os.pipe()
        leader = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            # The pipes of the others, and our own other ends: held here, they would never come to an end.
            for fd in (orders_write, answers_read, *(fd for member in before for fd in member.ends())):
                os.close(fd)
            _serve(orders_read, answers_write, leader, command, parsed, environ)
        os.close(orders_read)
        os.close(answers_write)
        self._orders = orders_write
        self._answers: IO[bytes] = open(answers_read, "rb")  # noqa: SIM115 - closed when the member has ended

    @property
    def answers(self) -> int:
        """The descriptor that is readable once there is an answer."""
        return self._answers.fileno()

    def ends(self) -> tuple[int, int]:
        """Return the descriptors of this side."""
        return self._orders, self.answers

    def give(self, order: Order) -> None:
        """Hand over a window. One that has died cannot take it, and is found out by its missing answer."""
        try:
            os.write(self._orders, _line(_as_told(order)))
        except BrokenPipeError:
            return

    def result(self, order: Order) -> Result:
        """Return what became of the window. Raises MemberFailed."""
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise MemberFailed(
                f"the process that worked on {order.key} has died.", "What became of it: ranonce show. Then go on."
            )
        told = json.loads(line)
        if "error" in told:
            raise MemberFailed(*told["error"])
        return Result(told["exit"], told["signal"], Receipt(**told["receipt"]))

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return  # it has ended, which its answer tells

    def dismiss(self) -> None:
        """Have no more windows for it."""
        os.close(self._orders)

    def wait(self) -> None:
        """Wait for its end."""
        os.waitpid(self.pid, 0)
        self._answers.close()


def _serve(
    orders: int, answers: int, leader: int, command: Command, parsed: Parsed, environ: Mapping[str, str]
) -> NoReturn:
    """In a member: work on the windows that are given, one after the other, and answer for each."""
    try:
        os.setpgid(0, 0)
        die_with(leader)
        with open(orders, "rb") as given:
            first = given.readline()
            if first:
                carry_out(command, parsed, environ, lambda call: _work(call, first, given, answers))
    except RanonceError as error:
        os.write(answers, _line({"error": [error.sentence, error.next_step, error.exit_status]}))
    except OSError as error:
        os.write(answers, _line({"error": [f"a process of the backfill failed: {error}.", "", 1]}))
    finally:  # this is a copy of the leader: nothing may escape into its code
        os._exit(0)


def _work(call: Call, first: bytes, given: IO[bytes], answers: int) -> tuple[int, None]:
    terms = call.terms()
    line = first
    while line and call.signals.first is None:
        result = work(terms, _from_told(json.loads(line)))
        terms.ledger.warnings.clear()
        told = {"exit": result.exit, "signal": result.signal, "receipt": result.receipt.as_dict()}
        data = _line(told)
        while data:
            data = data[os.write(answers, data) :]
        line = given.readline()
    return 0, None


def _line(told: object) -> bytes:
    return json.dumps(told).encode() + b"\n"


def _as_told(order: Order) -> dict[str, Any]:
    key, window = order.key, order.window
    return order.as_dict() | {"key": list(key.as_dict().values()), "window": list(window.as_dict().values())}


def _from_told(told: dict[str, Any]) -> Order:
    return Order(**{**told, "key": RunKey(*told["key"]), "window": Window(*told["window"])})
