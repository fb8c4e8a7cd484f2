#!/usr/bin/env python3
"""The README of each crate, made from the documentation in its lib.rs. Run it to write them; the guards compare them."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def readme(crate):
    """The text of a crate's README: its lib.rs as a reader of the folder sees it, without links that only rustdoc follows."""
    name = re.search(r'^name = "(.*)"', (crate / "Cargo.toml").read_text(), re.MULTILINE)[1]
    head = re.match(r"(?:^//!.*\n)+", (crate / "src/lib.rs").read_text(), re.MULTILINE)[0]
    lines, is_code = [], False
    for line in head.splitlines():
        line = re.sub(r"^//! ?", "", line)
        if line.startswith("```"):
            line, is_code = ("```" if is_code else "```rust"), not is_code
        elif is_code and re.match(r"# |#$", line):
            continue
        elif not is_code:
            line = re.sub(r"\[(`[^`]+`)\](?:\([\w:()]+\))?", r"\1", line)
        lines.append(line)
    return "\n".join([f"# {name}", "", *lines]).rstrip() + "\n"


def readmes():
    """The crates' READMEs, with the text that each must have."""
    for manifest in sorted(ROOT.glob("crates/*/*/Cargo.toml")):
        yield manifest.parent / "README.md", readme(manifest.parent)


if __name__ == "__main__":
    for path, text in readmes():
        path.write_text(text)
