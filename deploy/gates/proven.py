"""tests/PROVEN.md: what `deploy/dev prove` ran last, phase by phase, and what was green when."""
import os

PATH = "tests/PROVEN.md"
HEAD = """# What was proven, and when

`deploy/dev prove` writes this table. `.ci/run` looks under the sanitizers only at rooms that have
changed since the commit of `last green`.

| phase | last green | date | s | newest run | unsteady |
| --- | --- | --- | --- | --- | --- |
"""
COLUMNS = ("last green", "date", "s", "newest run", "unsteady")
NEVER = "never"


class Proven:
    def __init__(self, path=PATH):
        self.path, self.rows = path, {}
        if not os.path.exists(path):
            return
        with open(path, encoding="utf-8") as file:
            for line in file:
                cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
                head = cells[0] == "phase" or set(cells[0]) == {"-"}
                if len(cells) == len(COLUMNS) + 1 and not head:
                    self.rows[cells[0]] = dict(zip(COLUMNS, cells[1:]))

    def last_green(self, phase):
        """The commit; None if there is none."""
        commit = self.rows.get(phase, {}).get("last green", NEVER)
        return None if commit == NEVER else commit

    def record(self, phase, commit, date, seconds, failures, unsteady):
        """Writes the file: a red run keeps the commit, date and seconds of the last green one."""
        before = self.rows.get(phase, {"last green": NEVER, "date": "", "s": ""})
        row = dict(before) if failures else {
            "last green": commit, "date": date, "s": f"{seconds:.0f}"}
        red = f"red, {commit} of {date}: {'; '.join(failures)}"
        row["newest run"] = red if failures else "green"
        row["unsteady"] = ", ".join(unsteady)
        self.rows[phase] = {key: str(value).replace("|", "/") for key, value in row.items()}
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            file.write(HEAD)
            for name, cells in self.rows.items():
                file.write(f"| {name} | {' | '.join(cells[key] for key in COLUMNS)} |\n")
        os.replace(self.path + ".new", self.path)
