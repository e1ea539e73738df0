"""tests/PROVEN.md: which commit was green last, phase by phase and room by room.

`deploy/dev prove` runs a phase whole; gate 1 looks at some of its rooms, longest unseen first.
"""
import os

PATH = "tests/PROVEN.md"
HEAD = """# What was proven, and when

`deploy/dev prove` writes this table, phases that ran whole.

| phase | last green | date | s | newest run | unsteady |
| --- | --- | --- | --- | --- | --- |
"""
HEAD_OF_ROOMS = """
`.ci/run` looks at rooms that have changed since they were last green, and writes what it saw since
the whole phase was green into the work tree that it was cloned from.

| phase | green at | rooms |
| --- | --- | --- |
"""
COLUMNS = ("last green", "date", "s", "newest run", "unsteady")
NEVER = "never"


class Proven:
    def __init__(self, path=PATH):
        self.path, self.rows = path, {}
        self.rooms = {}  # (phase, room): commit
        if not os.path.exists(path):
            return
        with open(path, encoding="utf-8") as file:
            for line in file:
                cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
                if cells[0] == "phase" or set(cells[0]) == {"-"}:
                    continue
                if len(cells) == len(COLUMNS) + 1:
                    self.rows[cells[0]] = dict(zip(COLUMNS, cells[1:]))
                elif len(cells) == 3:
                    phase, commit, rooms = cells
                    self.rooms.update({(phase, room): commit for room in rooms.split()})

    def last_green(self, phase, room=None):
        """The commit at which the phase, or a room of it, was green; None if there is none."""
        commit = self.rows.get(phase, {}).get("last green", NEVER)
        return self.rooms.get((phase, room), None if commit == NEVER else commit)

    def record(self, phase, commit, date, seconds, failures, unsteady):
        """Writes the file: a red run keeps the commit, date and seconds of the last green one."""
        before = self.rows.get(phase, {"last green": NEVER, "date": "", "s": ""})
        row = dict(before) if failures else {
            "last green": commit, "date": date, "s": f"{seconds:.0f}"}
        red = f"red, {commit} of {date}: {'; '.join(failures)}"
        row["newest run"] = red if failures else "green"
        row["unsteady"] = ", ".join(unsteady)
        self.rows[phase] = {key: str(value).replace("|", "/") for key, value in row.items()}
        if not failures:
            self.rooms = {key: value for key, value in self.rooms.items() if key[0] != phase}
        self.write()

    def saw(self, looks, commit):
        """Writes the file: `looks`, pairs of a phase and a room, were green at `commit`."""
        self.rooms.update({look: commit for look in looks})
        self.write()

    def write(self):
        rooms = {}
        for (phase, room), commit in self.rooms.items():
            rooms.setdefault((phase, commit), []).append(room)
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            file.write(HEAD)
            for name, cells in self.rows.items():
                file.write(f"| {name} | {' | '.join(cells[key] for key in COLUMNS)} |\n")
            if rooms:
                file.write(HEAD_OF_ROOMS)
            for (phase, commit), names in sorted(rooms.items()):
                file.write(f"| {phase} | {commit} | {' '.join(sorted(names))} |\n")
        os.replace(self.path + ".new", self.path)
