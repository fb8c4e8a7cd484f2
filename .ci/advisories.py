#!/usr/bin/env python3
"""RustSec's advisories as a table of facts: for machines that cannot reach the database itself.

    .ci/advisories.py read CLONE      makes .ci/advisories.json from a clone of RustSec's advisory-db
    .ci/advisories.py write FOLDER    makes a database of that table, in the form in which cargo-deny reads one
"""
import datetime
import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

TABLE = Path(__file__).with_name("advisories.json")
# The name that cargo-deny derives from the database's default address.
NAME = "advisory-db-3157b0e258782691"


def git(clone, *arguments):
    return subprocess.run(["git", "-C", clone, *arguments], check=True, capture_output=True).stdout


def read(clone):
    """Writes the table: one line per advisory that was not withdrawn."""
    commit, date = git(clone, "log", "-1", "--format=%H %cs").decode().split()
    rows = []
    with tarfile.open(fileobj=io.BytesIO(git(clone, "archive", "HEAD", "crates"))) as files:
        for file in files:
            if not file.name.endswith(".md"):
                continue
            _, facts, _ = files.extractfile(file).read().decode().split("```", 2)
            facts = tomllib.loads(facts.removeprefix("toml"))
            advisory, versions = facts["advisory"], facts["versions"]
            if "withdrawn" in advisory:
                continue
            row = {"id": advisory["id"], "package": advisory["package"], "date": str(advisory["date"])}
            row |= {key: advisory[key] for key in ["informational"] if key in advisory}
            row |= {key: versions[key] for key in ["patched", "unaffected"] if versions.get(key)}
            rows.append(row)
    rows.sort(key=lambda row: row["id"])
    lines = ",\n".join(json.dumps(row) for row in rows)
    TABLE.write_text(f'{{"commit": "{commit}", "date": "{date}", "advisories": [\n{lines}\n]}}\n')


def write(folder):
    """Writes the database. JSON's texts and lists are TOML's, too."""
    table = json.loads(TABLE.read_text())
    database = folder / NAME
    for row in table["advisories"]:
        versions = {key: row.pop(key, []) for key in ["patched", "unaffected"]}
        entry = ["```toml", "[advisory]", *(f"{key} = {json.dumps(value)}" for key, value in row.items()), "[versions]",
                 *(f"{key} = {json.dumps(value)}" for key, value in versions.items()), "```", "", f"# {row['id']}", ""]
        file = database / "crates" / row["package"] / f"{row['id']}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(entry))
    # cargo-deny takes this file's time as that of the last download.
    (database / ".git").mkdir(exist_ok=True)
    fetched = database / ".git/FETCH_HEAD"
    fetched.write_text("")
    date = datetime.date.fromisoformat(table["date"])
    time = datetime.datetime.combine(date, datetime.time(), datetime.UTC).timestamp()
    os.utime(fetched, (time, time))
    age = (datetime.datetime.now(datetime.UTC).date() - date).days
    print(f"advisories: a copy of {date}, {age} days old, since RustSec's database cannot be reached: later ones are not checked")


def main():
    match sys.argv[1:]:
        case ["read", clone]:
            read(clone)
        case ["write", folder]:
            write(Path(folder))
        case _:
            sys.exit(__doc__)


main()
