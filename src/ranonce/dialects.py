"""When the schedulers other than Debian's cron really fire a cron rule in a named zone.

systemd fires each local minute once, in its first pass, and never one that a clock change skips (where the clock
changes between full hours, as on Chatham, systemd 252 may stop firing at all; that is not followed). Kubernetes uses
robfig/cron, which walks the fields from the month down and so loses or doubles slots near some clock changes. Away
from clock changes it fires every local minute that matches; near them its walk is followed here step by step, in our
own words. Sources: the behaviour of systemd 252, and of robfig/cron 3.0.1 built with Go 1.19.
"""

from __future__ import annotations

from datetime import date

from ranonce.cron import CronRule
from ranonce.timefmt import DAY, FIRST_INSTANT, INSTANTS_END, ORDINAL_OF_1970
from ranonce.zones import Zone, every_pass, first_pass

HOUR = 3600
# How far before a span a clock change can still matter: its own days, or, when a rule leaves out months, the months
# that robfig's walk may leap over.
_NEAR = 4 * DAY
_LEAP = 400 * DAY


def systemd_fires(rule: CronRule, zone: Zone, since: int, until: int) -> list[int]:
    """Return the instants in [since, until) at which a systemd timer for this rule fires, ascending."""
    fires = first_pass(zone, rule.slots, since, until, skipped_run=False)
    for change in zone.changes(max(since - DAY, FIRST_INSTANT), until):
        begin, end = change + zone.offset(change - 1), change + zone.offset(change)
        skipped = rule.slots(begin, end)
        if skipped and skipped[0] // HOUR * HOUR > begin:
            # The hour of a skipped slot is moved on by the size of the change. Where that is more than an hour
            # (Troll), the search lands behind the change, and what lies before its landing is lost too.
            landing = change + skipped[0] // HOUR * HOUR - begin
            fires = [fire for fire in fires if not change <= fire < landing]
    return fires


def kubernetes_rule(rule: CronRule) -> CronRule:
    """Return the rule as robfig/cron reads it: a day field with a step, such as `*/2`, does not count as `*`."""
    words = rule.text.split()
    starred = [any(part in ("*", "*/1") for part in words[at].split(",")) for at in (2, 4)]
    return rule.reading_days(either=not any(starred))


def kubernetes_fires(rule: CronRule, zone: Zone, since: int, until: int) -> list[int]:
    """Return the instants in [since, until) at which a Kubernetes CronJob with this rule fires, ascending."""
    rule = kubernetes_rule(rule)
    until = min(until, INSTANTS_END - 2 * DAY)  # room for local times east of UTC
    lookback = _NEAR if len(rule.months) == 12 else _LEAP
    fires: list[int] = []
    done, last = since, FIRST_INSTANT - 1
    for change in zone.changes(max(since - lookback, FIRST_INSTANT), until + _NEAR):
        # The walk is followed from the local midnight a day before the change to the one two days after it, and on
        # to the fire that comes next, however far.
        before, after = zone.offset(change - 1), zone.offset(change)
        begin = (change + before) // DAY * DAY - DAY - before
        end = (change + after) // DAY * DAY + 2 * DAY - after
        if date.fromordinal((change + after) // DAY + ORDINAL_OF_1970).day == 1:
            end += 31 * DAY  # every walk out of this month starts at its first midnight, which may be missing
        if done < begin:
            fires.extend(every_pass(zone, rule.slots, done, min(begin, until)))
        walk = _Walk(rule, zone, max(begin, last + 1), until)
        last = begin
        while last < end and last < until:
            last = walk.next_fire()
            if since <= last < until:
                fires.append(last)
        done = max(done, last + 1)
    if done < until:
        fires.extend(every_pass(zone, rule.slots, done, until))
    return fires


class _Walk:
    """robfig/cron's search for the next fire, in unix seconds and the zone's local fields.

    Each step says whether it wrapped round into the next larger field, which then must be looked at again.
    """

    def __init__(self, rule: CronRule, zone: Zone, start: int, until: int) -> None:
        self.rule = rule
        self.zone = zone
        self.t = start - 1
        self.until = until
        self.moved = False
        self.hours = frozenset(at // HOUR for at in rule.minutes)
        self.minutes = frozenset(at % HOUR // 60 for at in rule.minutes)

    def next_fire(self) -> int:
        """Move to the first fire after the present instant and return it; `until` if there is none before it."""
        after = self.t
        for ahead in range(1, DAY, 60):
            self.t = after + ahead
            self.moved = False
            while self.t < self.until:
                if not (self._month() or self._day() or self._hour() or self._minute() or self._second()):
                    break
            if self.t > after:
                return min(self.t, self.until)
            # robfig went back in time (where the clock is set back between full hours) and would go round for ever.
        return self.until

    def _local(self) -> tuple[int, int]:
        """Return the local day, counted from 1970-01-01, and the second of that day."""
        return divmod(self.t + self.zone.offset(self.t), DAY)

    def _date(self) -> date:
        return date.fromordinal(self._local()[0] + ORDINAL_OF_1970)

    def _set(self, day: int, second: int) -> None:
        """Move to a local time the way Go does: by the offset in force at that time read as UTC, corrected once."""
        local = day * DAY + second
        offset = self.zone.offset(local)
        self.t = local - (offset if self.zone.offset(local - offset) == offset else self.zone.offset(local - offset))

    def _month(self) -> bool:
        while self.t < self.until and self._date().month not in self.rule.months:
            if not self.moved:
                self.moved = True
                self._set(self._local()[0] - self._date().day + 1, 0)
            today, second = self._date(), self._local()[1]
            if today.year == 9999 and today.month == 12:
                self.t = self.until
                break
            following = date(today.year + today.month // 12, today.month % 12 + 1, 1)
            self._set(following.toordinal() - ORDINAL_OF_1970 + today.day - 1, second)
            if self._date().month == 1:
                return True
        return self.t >= self.until

    def _day(self) -> bool:
        while self.t < self.until:
            today = self._date()
            if self.rule.matches_day(today.day, today.isoweekday() % 7):
                return False
            if not self.moved:
                self.moved = True
                self._set(self._local()[0], 0)
            was, (day, second) = self.t, self._local()
            self._set(day + 1, second)
            hour = self._local()[1] // HOUR
            if hour:
                self.t += (24 - hour if hour > 12 else -hour) * HOUR
            if self.t <= was:  # robfig would search for ever; go on from the next day
                self.t = was + DAY
            if self._date().day == 1:
                return True
        return True

    def _hour(self) -> bool:
        while (second := self._local()[1]) // HOUR not in self.hours:
            if not self.moved:
                self.moved = True
                self._set(self._local()[0], second // HOUR * HOUR)
            self.t += HOUR
            if self._local()[1] < HOUR:
                return True
        return False

    def _minute(self) -> bool:
        while (second := self._local()[1]) % HOUR // 60 not in self.minutes:
            if not self.moved:
                self.moved = True
                self.t -= second % 60
            self.t += 60
            if self._local()[1] % HOUR < 60:
                return True
        return False

    def _second(self) -> bool:
        past = self._local()[1] % 60
        if past:
            self.moved = True
            self.t += 60 - past
        return past > 0
