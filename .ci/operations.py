#!/usr/bin/env python3
"""docs/operations.md, made from the files of graph's ops folder. Run it to write it; the guards compare it."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPS = ROOT / "crates/core/graph/src/ops"

HEAD = """# Operations

What a plan consists of. Each section is a file of `crates/core/graph/src/ops/`, and of the folder `ops` of each device. A
signature gives operands and results with their dimensions: N = batch, H, W = height and width, T = tokens, C = channels,
K = classes. A name with `?` may be absent, and one with `..` stands for any number of values. Elements are f32 unless stated
otherwise. In a plan of bf16 or f16, images, tokens and their gradients have that type.
"""


def plain(doc):
    """Documentation without links that only rustdoc follows, as one line a paragraph."""
    doc = re.sub(r"\[(`[^`]+`)\](?:\([\w:()]+\))?", r"\1", doc)
    doc = re.sub(r"`(?:crate|super)::(?:ops::)?", "`", doc)
    return "\n\n".join(" ".join(part.split()) for part in doc.strip().split("\n\n"))


def documentation(lines):
    return plain("\n".join(re.sub(r"^\s*/// ?", "", line) for line in lines.strip().splitlines()))


def strings(source):
    """The text of a Rust string literal that may go on in further lines, or of several between brackets."""
    return re.sub(r"\\\n\s*", "", "".join(re.findall(r'"([^"]*)"', source)))


def operation(source, implementation):
    """The section of one operation: its name, signature, documentation and attributes."""
    kind, body = implementation
    constant = lambda name: re.search(rf"const {name}: [^=]*=\s*([^;]*);", body)
    text = [f"### `{strings(constant('NAME')[1])}`", "", f"`{strings(constant('SIGNATURE')[1])}`", ""]
    pytorch = constant("PYTORCH")
    if pytorch:
        text += [f"PyTorch: `{strings(pytorch[1])}`", ""]
    found = re.search(rf"((?:^///[^\n]*\n)+)(?:^#\[[^\n]*\n)+pub (?:struct|enum) {kind}\b([^\n]*;$|.*?^\}}$)", source, re.M | re.S)
    if found:
        text += [documentation(found[1]), ""]
        attributes = re.findall(r"((?:^    ///.*\n)+)    (?:pub )?(\w+)(?=:|,|\(| \{)", found[2], re.M)
        text += [f"- `{name}`: {documentation(doc)}" for doc, name in attributes]
        text += [""] if attributes else []
    return text


def operations():
    """The page, with the text that it must have."""
    text = [HEAD]
    for path in sorted(OPS.glob("*.rs")):
        source = path.read_text()
        implementations = re.findall(r"^impl Operation for (\w+) \{\n(.*?)^\}", source, re.M | re.S)
        for name, constant in re.findall(r'^collective!\((\w+), ("\w+")\);', source, re.M):
            body = re.search(r"impl Operation for \$operation \{(.*?)\n    \};", source, re.S)[1]
            implementations.append((name, body.replace("$name", constant)))
        if implementations:
            title = plain("\n".join(re.sub(r"^//! ?", "", line) for line in re.match(r"(?://!.*\n)+", source)[0].splitlines()))
            text += [f"## {path.stem}", "", title, ""]
            for implementation in implementations:
                text += operation(source, implementation)
    yield ROOT / "docs/operations.md", "\n".join(text).rstrip() + "\n"


if __name__ == "__main__":
    for path, text in operations():
        path.write_text(text)
