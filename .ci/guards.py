#!/usr/bin/env python3
"""Guards on the text of the repository: file sizes, module headers, words and paths that must not be in it, fixture sizes."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 700  # lines of a Rust file; most stay under 500
FIXTURES = 3 << 20  # bytes of all fixtures together
FORBIDDEN = [
    (r"\btodo!\(|\bunimplemented!\(|#\[ignore", "unfinished or ignored code"),
    (r"/work/|/tmp/target-|\bhelper session\b", "a path or word of somebody's machine"),
    (r"\bcrates\.io\b|\bpypi\.org\b|\bnpmjs\b", "a registry's host name"),
]
IN_TESTS = [(r"thread::sleep", "a sleep in a test: wait on an event with a deadline")]
# Files whose subject is the forbidden text itself.
EXEMPT = {".ci/guards.py"}


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [path for path in listed.decode().split("\0") if path and (ROOT / path).is_file()]


def problems():
    fixtures = 0
    for path in tracked():
        data = (ROOT / path).read_bytes()
        if "/fixtures/" in f"/{path}" and not path.endswith((".py", ".rs", ".md")):
            fixtures += len(data)
            continue
        try:
            text = data.decode()
        except UnicodeDecodeError:
            yield f"{path}: binary file outside a fixtures folder"
            continue
        if path.endswith(".rs"):
            lines = text.count("\n")
            if lines > LONGEST:
                yield f"{path}: {lines} lines; split it below {LONGEST}"
            if not text.startswith("//!"):
                yield f"{path}: does not open with //! and what the module is for"
        if path in EXEMPT or path == "Cargo.lock":
            continue
        is_test = "/tests" in path or "_tests" in path
        for pattern, meaning in FORBIDDEN + (IN_TESTS if is_test else []):
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: {match.group(0)!r}: {meaning}"
    if fixtures > FIXTURES:
        yield f"fixtures take {fixtures} bytes together; at most {FIXTURES}"


def main():
    found = list(problems())
    print("\n".join(found) or "guards: nothing found")
    sys.exit(1 if found else 0)


main()
