"""What may hold is looked at room by room: those that changed since they were last green, longest
unseen first, while the clock allows. A look that the clock ends is for the next time.

Age is counted in commits that touch C++, of which a landing has about twenty; it weighs more in a
phase with less patience.
"""
import collections
import math

from gates import rooms

PATIENCE = {  # in commits
    "asan": 120, "tsan": 120, "process tests": 400, "headers and annotations": 300,
    "clang-tidy": 600,
}

Turn = collections.namedtuple("Turn", "phase room age look")


class Turns:
    def __init__(self, proven):
        self.proven = proven
        self.waiting, self.seen = [], []

    def add(self, phase, all_rooms, touched, look):
        """`touched(files)`: the rooms that those files touch, all for None; `look(room)`: whether
        it held, None where there was nothing to look at."""
        by_base = collections.defaultdict(set)
        for room in all_rooms:
            by_base[self.proven.last_green(phase, room)].add(room)
        for base, members in by_base.items():
            files = rooms.changed_files(base)
            age = math.inf if files is None else rooms.commits_since(base)
            self.waiting += [Turn(phase, room, age, look)
                             for room in sorted(members.intersection(touched(files)))]
        self.waiting.sort(key=lambda turn: -turn.age / PATIENCE[turn.phase])

    def overdue(self, *phases):
        """A sentence for each of the phases with a room that was not green for too long."""
        for phase in phases:
            late = [turn.room for turn in self.waiting
                    if turn.phase == phase and PATIENCE[phase] < turn.age < math.inf]
            if late:
                yield (f"{phase}: not green for more than {PATIENCE[phase]} commits, and changed; "
                       f"run deploy/dev prove {phase}: {' '.join(late)}")

    def take(self, has_time):
        for turn in list(self.waiting):
            if not has_time():
                return
            held = turn.look(turn.room)
            if held or held is None:
                self.waiting.remove(turn)
            if held:
                self.seen.append((turn.phase, turn.room))

    def told(self):
        """A line for each phase."""
        for phase in dict.fromkeys([*(phase for phase, _ in self.seen),
                                    *(turn.phase for turn in self.waiting)]):
            seen = sum(1 for other, _ in self.seen if other == phase)
            ages = [turn.age for turn in self.waiting if turn.phase == phase]
            since = "never seen" if math.inf in ages else (
                f"the oldest not seen for {max(ages, default=0)} commits")
            yield f"{phase}: {seen} rooms seen, {len(ages)} wait" + (f", {since}" if ages else "")
