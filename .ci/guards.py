#!/usr/bin/env python3
"""Guards on the text of the repository: file sizes, module headers, forbidden words and paths, fixture sizes, the crates'
dependencies in ARCHITECTURE.md, their READMEs, the keys of JSON in docs/json.md, that links and paths in documents lead
somewhere, that every example is compiled, and that public crates can be packaged."""
import gzip
import hashlib
import pathlib
import re
import subprocess
import sys
import tomllib

from operations import operations
from readmes import readmes

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 700  # lines of a Rust file; most stay under 500
FIXTURES = 22 << 18  # bytes of all fixtures together
CORPUS = 300_000  # bytes of all inputs of fuzz targets together
FORBIDDEN = [
    (r"\btodo!\(|\bunimplemented!\(|#\[ignore", "unfinished or ignored code"),
    (r"/work/|/tmp/target-|\bhelper session\b", "a path or word of one machine"),
    (r"\bcrates\.io\b|\bpypi\.org\b|\bnpmjs\b", "a registry's host name"),
]
# Words that the field does not use: a pattern of paths, the word, and what to write.
RETIRED = [
    (r"(?<!fixtures/cifar\.py)$", r"(?i)(?<![a-z])pictures?(?![a-z])", "image"),
    (r"\.(rs|md)$", r"\b[Rr]ectifiers?\b|\bRectify", "activation, relu"),
    (r"\.rs$", r"\b(MOST|LONGEST|FEWEST|LEAST|SHORTEST|LARGEST|SMALLEST)_[A-Z]", "MAX_, MIN_"),
    (r"^crates/(?!cluster/comm/).*\.rs$", r"\b[Gg]raphics cards?\b|\b(a|the|each|every|this) card\b", "GPU"),
    (r"\.rs$", r"\bHostedShard\b|\.hosted\b", "local (shards)"),
    (r"\.rs$", r"\b(Metric|Loss)::Own\b", "Custom"),
    (r"\.rs$", r"\bfn lend\b|\.lend\(", "register_memory"),
    (r"\.(rs|md)$", r"(?i)\bmatrix products?\b", "matmul"),
    (r"\.(rs|md)$", r"(?i)\bverdicts?\b|\bjudge[sd]?\b", "evaluate, decide"),
    (r"^crates/data/.*\.rs$", r"\b(likeness|refit|survey)\b", "near_duplicates, reuse, scan"),
    (r"\.rs$", r"\bSampler::Drawn\b", "Resampled"),
    (r"\.rs$", r"\b(struct|enum) (Turn|Scene|Ties|Reach|Liaison|Hall|Whereabouts|Stretch|Wanted|View|Cut|Round)\b", "the field's name"),
    (r"^crates/(core|program)/.*\.rs$", r"\busual_|\bUSUAL_", "default_"),
    (r"^crates/(?!core/train|program).*\.rs$", r"(?i)(?<![a-z])patience(?![a-z])", "timeout"),
]
# Old spellings that are still read, and keys of random numbers, which decide the bits of a run.
KEPT = r'RandomStream::new\([^"\n]*"[^"]*"|alias = "[^"]*"|replace\("images", "pictures"\)'
IN_TESTS = [(r"thread::sleep", "a sleep in a test: wait on an event with a deadline")]
# Files whose subject is the forbidden text itself.
EXEMPT = {".ci/guards.py"}


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [path for path in listed.decode().split("\0") if path and (ROOT / path).is_file()]


def has_digest(path, data):
    """Whether the file `sha256` beside a compressed one has its contents' SHA-256, as `sha256sum` writes it."""
    file = ROOT / path
    digests = file.parent / "sha256"
    line = f"{hashlib.sha256(gzip.decompress(data)).hexdigest()}  {file.name.removesuffix('.gz')}"
    return digests.is_file() and line in digests.read_text().splitlines()


def problems():
    fixtures = corpus = 0
    for path in tracked():
        data = (ROOT / path).read_bytes()
        if "/fixtures/" in f"/{path}" and not path.endswith((".py", ".rs", ".md")):
            fixtures += len(data)
            continue
        if path.startswith("fuzz/corpus/"):
            corpus += len(data)
            continue
        try:
            text = data.decode()
        except UnicodeDecodeError:
            if not path.endswith(".gz"):
                yield f"{path}: binary file outside a fixtures folder"
            elif not has_digest(path, data):
                yield f"{path}: the file sha256 beside it has not the SHA-256 of its contents"
            continue
        if path.endswith(".rs"):
            lines = text.count("\n")
            if lines > LONGEST:
                yield f"{path}: {lines} lines; split it below {LONGEST}"
            if not text.startswith("//!"):
                yield f"{path}: does not open with //! and the module's purpose"
        if path in EXEMPT or path.endswith("Cargo.lock"):
            continue
        is_test = "/tests" in path or "_tests" in path
        for pattern, meaning in FORBIDDEN + (IN_TESTS if is_test else []):
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: {match.group(0)!r}: {meaning}"
        if path.endswith("CHANGELOG.md"):
            continue
        said = re.sub(KEPT, lambda kept: " " * len(kept[0]), text)
        for where, pattern, word in RETIRED:
            for match in re.finditer(pattern, said) if re.search(where, path) else ():
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: {match.group(0)!r}: write {word}"
    if corpus > CORPUS:
        yield f"the inputs of fuzz targets take {corpus} bytes together; at most {CORPUS}"
    if fixtures > FIXTURES:
        yield f"fixtures take {fixtures} bytes together; at most {FIXTURES}"


def dependencies():
    """The crates of the workspace, each with its folder and its own crates as dependencies; dev-dependencies are left out."""
    for manifest in sorted(ROOT.glob("crates/*/*/Cargo.toml")):
        names = tomllib.loads(manifest.read_text()).get("dependencies", {})
        own = {name.removeprefix("enmasse-") for name in names if name == "enmasse" or name.startswith("enmasse-")}
        yield manifest.parent.name, manifest.parent.parent.name, own


def untruths():
    """Differences between the manifests and ARCHITECTURE.md's table and diagram of crates."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    cells = re.findall(r"^\| `([\w-]+)/([\w-]+)` \|[^|]*\|([^|]*)\|[^|]*\|$", text, re.MULTILINE)
    table = {crate: (folder, set(re.findall(r"[\w-]+", names))) for folder, crate, names in cells}
    diagram = text.split("```")[1]
    rows = {crate: row for row, line in enumerate(diagram.splitlines()) for crate in re.findall(r"[\w-]+", line)}
    actual = {crate: (folder, own) for crate, folder, own in dependencies()}
    for crate in sorted(actual.keys() | table.keys()):
        folder, expected = actual.get(crate, ("no folder", set()))
        if table.get(crate) != (folder, expected):
            yield f"ARCHITECTURE.md: {crate} lies in {folder} and depends on {', '.join(sorted(expected)) or 'no other crate'}; the table says otherwise"
        for other in sorted(expected):
            if rows.get(crate, -1) >= rows.get(other, -1):
                yield f"ARCHITECTURE.md: {crate} depends on {other}, which must stand in a lower row of the diagram"


def stale():
    """Crates whose README is not that of their lib.rs, or whose lib.rs has no example; and the page of operations."""
    for path, text in readmes():
        if "```rust" not in text:
            yield f"{path.parent.relative_to(ROOT)}/src/lib.rs: no example among the module's documentation"
        if not path.exists() or path.read_text() != text:
            yield f"{path.relative_to(ROOT)}: differs from lib.rs; run .ci/readmes.py"
    for path, text in operations():
        if not path.exists() or path.read_text() != text:
            yield f"{path.relative_to(ROOT)}: differs from graph's ops; run .ci/operations.py"


def objects(text):
    """The arguments of each `json!` in a Rust file, outside of its tests."""
    code = text.split("#[cfg(test)]")[0]
    for start in (match.end() for match in re.finditer(r"json!\(", code)):
        depth, end = 1, start
        while depth:
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
        yield code[start:end]


def undocumented():
    """Events and keys that the program prints as JSON, and docs/json.md does not name."""
    page = (ROOT / "docs/json.md").read_text()
    for path in sorted(path for path in tracked() if re.match(r"crates/program/(enmasse/src/.*|doctor/src/report)\.rs$", path)):
        written = "".join(objects((ROOT / path).read_text()))
        for word in sorted({*re.findall(r'"event": "(\w+)"', written), *re.findall(r'"(\w+)":', written)}):
            if f"`{word}`" not in page:
                yield f"docs/json.md: no `{word}`, which {path} prints"


def anchors(text):
    """The anchors of a document's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ +(.*)$", prose, re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def dead_ends():
    """Relative links, and paths of the repository in `code`, that lead nowhere. Links to other hosts are not followed."""
    paths = set(tracked())
    paths |= {str(parent) for path in paths for parent in pathlib.PurePath(path).parents}
    tops = {path for path in paths if "/" not in path}
    # ARCHITECTURE.md names files by the end of their paths.
    ends = {"/".join(parts[start:]) for parts in (path.split("/") for path in paths) for start in range(len(parts))}
    for document in sorted(path for path in paths if path.endswith(".md")):
        text = (ROOT / document).read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"\w+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (ROOT / document).parent / path if path else ROOT / document
            if not file.exists():
                yield f"{document}: the link to {target} leads to no file"
            elif anchor and anchor not in anchors(file.read_text()):
                yield f"{document}: the link to {target} leads to no heading"
        for path in re.findall(r"`([\w./-]+)`", text):
            path = path.rstrip("/")
            ours = path.split("/")[0] in tops or path.endswith(".rs")
            if ours and path not in ends:
                yield f"{document}: `{path}` is no path of the repository"


def unlisted():
    """Examples that are not compiled: in the workspace, or outside it."""
    files = {path.name for path in (ROOT / "examples").glob("*.rs")}
    for manifest, kind in (("crates/program/enmasse/Cargo.toml", "example"), ("examples/Cargo.toml", "bin")):
        targets = tomllib.loads((ROOT / manifest).read_text())[kind]
        listed = {pathlib.PurePath(target["path"]).name for target in targets}
        for name in sorted(files - listed):
            yield f"{manifest}: examples/{name} is not listed"


def unpackaged():
    """What keeps a public crate from being a package of its own. A dependency for tests is found by its path alone: crates test
    each other in a circle, and some are not public."""
    shared = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    for path in sorted(ROOT.glob("crates/*/*/Cargo.toml")):
        manifest, name = tomllib.loads(path.read_text()), path.relative_to(ROOT)
        if manifest["package"].get("publish") is False:
            continue
        for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
            copy = path.parent / licence
            if not copy.is_symlink() or not copy.samefile(ROOT / licence):
                yield f"{name}: {licence} beside it is no link to that of the repository"
        for key in ("description", "license", "rust-version"):
            if key not in manifest["package"]:
                yield f"{name}: no {key}"
        for other in manifest.get("dependencies", {}):
            if "path" in shared.get(other, {}) and "version" not in shared[other]:
                yield f"Cargo.toml: {other} has no version, and {name} depends on it"
        for other, how in manifest.get("dev-dependencies", {}).items():
            if "version" in how or how.get("workspace") and "version" in shared.get(other, {}) and "path" in shared[other]:
                yield f"{name}: the dev-dependency {other} has a version; give its path alone"


def main():
    found = [*problems(), *unpackaged(), *untruths(), *stale(), *undocumented(), *dead_ends(), *unlisted()]
    print("\n".join(found) or "guards: nothing found")
    sys.exit(1 if found else 0)


main()
