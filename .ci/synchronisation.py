#!/usr/bin/env python3
"""Makes the standard library's locks visible to ThreadSanitizer, and prints the flags of rustc for that.

    .ci/synchronisation.py FOLDER

ThreadSanitizer sees the atomics of code that was compiled for it. The standard library was not, and its source, with which it
could be, is not part of a toolchain. What of it is generic or inlined is compiled with our code. The rest of its locks is a
few functions, which wait and then hold the lock. The linker puts a wrapper around each, which says so to the sanitizer.

The owners of an Arc give it up by a release, and the last one then acquires by a fence. The sanitizer does not see fences.
So a decrement by one acquires, too.
"""
import re
import subprocess
import sys
from pathlib import Path

# By the end of the function's path: the arguments, what the wrapper says before the call, and after it.
WRAPPED = {
    "5mutex5futexNtB2_5Mutex14lock_contended": ("void *lock", "", "__tsan_acquire(lock);"),
    "6rwlock5futexNtB2_6RwLock14read_contended": ("void *lock", "", "__tsan_acquire(lock);"),
    "6rwlock5futexNtB2_6RwLock15write_contended": ("void *lock", "", "__tsan_acquire(lock);"),
    "7condvar5futexNtB2_7Condvar4wait": ("void *event, void *lock", "__tsan_release(lock);", "__tsan_acquire(lock);"),
    "7condvar5futexNtB2_7Condvar12wait_timeout": (
        "void *event, void *lock, unsigned long seconds, unsigned nanoseconds",
        "__tsan_release(lock);",
        "__tsan_acquire(lock);",
    ),
    # The state is the lock's own word. Other threads may read that it is complete before the call returns.
    "4once5futexNtB5_4Once4call": (
        "void *once, _Bool forced, void *closure, void *functions, void *caller",
        "struct call call = {once, closure, functions}; closure = &call; functions = (void *)RELAY;",
        "__tsan_acquire(once);",
    ),
    "6scopedNtB2_9ScopeData29decrement_num_running_threads": (
        "void *scope, _Bool panicked",
        "for (int word = 0; word < 3; word++) __tsan_release((char *)scope + 8 * word);",
        "",
    ),
}

HELPERS = """
void __tsan_acquire(void *);
void __tsan_release(void *);

struct call { void *once, *closure; void **functions; };
static void relay(struct call *call, void *state) {
    ((void (*)(void *, void *))call->functions[4])(call->closure, state);
    __tsan_release(call->once);
}
/* Rust's table of an FnMut: how to drop it, its size and alignment, call_once, call_mut. */
static void *const RELAY[] = {0, (void *)sizeof(struct call), (void *)_Alignof(struct call), 0, relay};

unsigned long __real___tsan_atomic64_fetch_sub(volatile unsigned long *count, unsigned long by, int order);
unsigned long __wrap___tsan_atomic64_fetch_sub(volatile unsigned long *count, unsigned long by, int order) {
    return __real___tsan_atomic64_fetch_sub(count, by, by == 1 && order == __ATOMIC_RELEASE ? __ATOMIC_ACQ_REL : order);
}
"""


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    libraries = Path(subprocess.run(["rustc", "--print", "target-libdir"], check=True, capture_output=True, text=True).stdout.strip())
    table = subprocess.run(["nm", "-D", *libraries.glob("libstd-*.so")], check=True, capture_output=True, text=True).stdout
    source, flags = [HELPERS], ["-Clink-arg=-Wl,--wrap=__tsan_atomic64_fetch_sub"]
    for end, (parameters, before, after) in WRAPPED.items():
        found = re.findall(rf"\b(_R\w*{end})\b", table)
        if len(found) != 1:
            sys.exit(f"the standard library of this compiler has {len(found)} functions that end with {end}, not one")
        name, arguments = found[0], ", ".join(re.findall(r"(\w+)(?:,|$)", parameters))
        source.append(f"unsigned long __real_{name}({parameters});")
        source.append(f"unsigned long __wrap_{name}({parameters}) {{")
        source.append(f"    {before} unsigned long result = __real_{name}({arguments}); {after} return result;\n}}")
        flags.append(f"-Clink-arg=-Wl,--wrap={name}")
    (folder / "synchronisation.c").write_text("\n".join(source) + "\n")
    subprocess.run(["gcc", "-O1", "-fexceptions", "-c", "synchronisation.c", "-o", "synchronisation.o"], cwd=folder, check=True)
    print(f"-Clink-arg={folder.absolute()}/synchronisation.o", *flags)


main()
