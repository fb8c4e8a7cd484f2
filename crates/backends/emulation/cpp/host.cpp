// Runs kernels on a CPU: blocks one after another, the threads of a block as fibers.
//
// A fiber runs one thread after another and lends its stack to them in turn, until a thread waits. That fiber then stays
// with its thread, and another takes over the rest. So a kernel which never waits uses a single fiber and no switches.
// When no thread can go on, the waiting ones are matched: lanes of a warp first, then the whole block. What does not
// match would be undefined on a GPU, and is an error here. Results that depend on the order of threads show in a second run,
// which takes them backwards.
#include "host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <numeric>

__thread uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

const unsigned THREADS = 1024, LANES = 32;
const size_t PAGE = 1 << 16, STACK = 1 << 16, SHARED_BYTES = 48 << 10, ARGUMENT_BYTES = 4 << 10;

// A thread of the block.
struct Thread {
    enum State { RUNS, AT_BARRIER, AT_EXCHANGE, ENDED } state;
    struct Fiber *fiber;
    emulation::Site site;
    size_t shared;
    // Of an exchange: given, and taken.
    uint32_t mask;
    uint64_t value;
    unsigned source;
};

struct Fiber {
    bool started;
    char *stack;
    jmp_buf context;
    unsigned thread;
};

// What a thread of the host runs.
struct Runner {
    void (*kernel)(const void *);
    alignas(16) char arguments[ARGUMENT_BYTES];
    alignas(16) char shared[SHARED_BYTES];
    size_t shared_used;
    // Whether the last block and the last thread come first.
    bool backwards;
    // `next` counts threads in that order.
    unsigned threads, next, current;
    Thread thread[THREADS];
    Fiber fiber[THREADS];
    Fiber *idle[THREADS];
    unsigned idles;
    jmp_buf scheduler;
    char *message;
    size_t message_bytes;
    bool failed;

    ~Runner() {
        for (Fiber &fiber : this->fiber)
            if (fiber.stack) munmap(fiber.stack, PAGE + STACK);
    }
};

// Memory of a thread's own is scarce in an object that a program loads late, so there is only a pointer to the rest.
thread_local Runner *runner;

struct Owner {
    Runner *runner = static_cast<Runner *>(calloc(1, sizeof(Runner)));
    ~Owner() {
        if (!runner) return;
        runner->~Runner();
        free(runner);
    }
};

// The thread at a place in the order.
unsigned thread_at(Runner *r, unsigned place) { return r->backwards ? r->threads - 1 - place : place; }

void begin(Runner *r, unsigned thread) {
    r->current = thread;
    threadIdx = {thread, 0, 0};
}

// The body of every fiber.
void work() {
    Runner *r = runner;
    for (;;) {
        Fiber *self = r->thread[r->current].fiber;
        while (r->next < r->threads) {
            unsigned number = thread_at(r, r->next++);
            r->thread[number] = {Thread::RUNS, self, {}, 0, 0, 0, 0};
            self->thread = number;
            begin(r, number);
            r->kernel(r->arguments);
            r->thread[number].state = Thread::ENDED;
        }
        r->idle[r->idles++] = self;
        if (_setjmp(self->context) == 0) _longjmp(r->scheduler, 1);
    }
}

// Runs a fiber until its thread waits, or no thread is left for it.
void enter(Runner *r, Fiber *fiber) {
    if (_setjmp(r->scheduler) != 0) return;
    if (fiber->started) _longjmp(fiber->context, 1);
    if (!fiber->stack) {
        void *stack = mmap(nullptr, PAGE + STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED || mprotect((char *)stack + PAGE, STACK, PROT_READ | PROT_WRITE) != 0) abort();
        fiber->stack = (char *)stack;
    }
    fiber->started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack + PAGE;
    // Stacks that began at one place of a page would compete for the same lines of the cache.
    context.uc_stack.ss_size = STACK - (fiber - r->fiber) % 64 * 192;
    context.uc_link = nullptr;
    makecontext(&context, work, 0);
    setcontext(&context);
}

// Leaves the thread that runs, until the scheduler has matched it.
void wait(Runner *r) {
    Thread &self = r->thread[r->current];
    if (_setjmp(self.fiber->context) == 0) _longjmp(r->scheduler, 1);
    begin(r, self.fiber->thread);
}

void error(Runner *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

void error(Runner *r, const char *format, ...) {
    if (r->failed) return;
    r->failed = true;
    int start = snprintf(r->message, r->message_bytes, "block %u %u %u: ", blockIdx.x, blockIdx.y, blockIdx.z);
    va_list arguments;
    va_start(arguments, format);
    if (start > 0 && (size_t)start < r->message_bytes)
        vsnprintf(r->message + start, r->message_bytes - start, format, arguments);
    va_end(arguments);
}

bool same(emulation::Site a, emulation::Site b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// Gives the lanes which wait in this warp what they asked for. Returns how many can go on.
unsigned match_lanes(Runner *r, unsigned first) {
    unsigned matched = 0;
    for (unsigned lane = 0; lane < LANES && first + lane < r->threads; lane++) {
        Thread &thread = r->thread[first + lane];
        if (thread.state != Thread::AT_EXCHANGE) continue;
        if (!(thread.mask >> lane & 1)) error(r, "%s:%d: lane %u is not in its mask", thread.site.file, thread.site.line, lane);
        uint64_t values[LANES];
        for (unsigned other = 0; other < LANES; other++) {
            if (!(thread.mask >> other & 1)) continue;
            Thread *peer = first + other < r->threads ? &r->thread[first + other] : nullptr;
            if (!peer || peer->state != Thread::AT_EXCHANGE || peer->mask != thread.mask || !same(peer->site, thread.site)) {
                error(r, "%s:%d: thread %u waits for lane %u, which is not there", thread.site.file, thread.site.line,
                      first + lane, other);
                return 0;
            }
            values[other] = peer->value;
        }
        for (unsigned other = 0; other < LANES; other++) {
            if (!(thread.mask >> other & 1)) continue;
            Thread &peer = r->thread[first + other];
            if (!(thread.mask >> peer.source & 1)) {
                error(r, "%s:%d: thread %u reads lane %u, which is not in the mask", thread.site.file, thread.site.line,
                      first + other, peer.source);
                return 0;
            }
            peer.value = values[peer.source];
            peer.state = Thread::RUNS;
            matched++;
        }
    }
    return matched;
}

// Lets the block pass a barrier once all threads that have not ended wait there. Returns how many can go on.
unsigned match_block(Runner *r) {
    Thread *first = nullptr;
    unsigned matched = 0;
    for (unsigned number = 0; number < r->threads; number++) {
        Thread &thread = r->thread[number];
        if (thread.state == Thread::ENDED) continue;
        if (!first) first = &thread;
        if (!same(first->site, thread.site)) {
            error(r, "%s:%d and %s:%d: threads wait at two barriers", first->site.file, first->site.line, thread.site.file,
                  thread.site.line);
            return 0;
        }
        matched++;
    }
    for (unsigned number = 0; number < r->threads; number++)
        if (r->thread[number].state == Thread::AT_BARRIER) r->thread[number].state = Thread::RUNS;
    return matched;
}

void run_block(Runner *r) {
    memset(r->shared, 0xff, r->shared_used);
    r->next = 0;
    r->idles = 0;
    for (unsigned fiber = r->threads; fiber > 0; fiber--) r->idle[r->idles++] = &r->fiber[fiber - 1];
    while (r->next < r->threads && !r->failed) {
        Fiber *fiber = r->idle[--r->idles];
        // The fiber learns its own identity from the thread that it is about to run.
        r->current = thread_at(r, r->next);
        r->thread[r->current].fiber = fiber;
        enter(r, fiber);
    }
    while (!r->failed) {
        unsigned matched = 0;
        for (unsigned first = 0; first < r->threads; first += LANES) matched += match_lanes(r, first);
        if (!r->failed && matched == 0) matched = match_block(r);
        if (r->failed || matched == 0) return;
        for (unsigned place = 0; place < r->threads && !r->failed; place++) {
            Thread &thread = r->thread[thread_at(r, place)];
            if (thread.state != Thread::RUNS) continue;
            r->current = thread_at(r, place);
            enter(r, thread.fiber);
        }
    }
}

}  // namespace

void emulation::barrier(Site site) {
    Runner *r = runner;
    r->thread[r->current].site = site;
    r->thread[r->current].state = Thread::AT_BARRIER;
    wait(r);
}

uint64_t emulation::exchange(Site site, uint32_t mask, uint64_t value, unsigned source) {
    Runner *r = runner;
    Thread &self = r->thread[r->current];
    self.site = site;
    self.mask = mask;
    self.value = value;
    self.source = source;
    self.state = Thread::AT_EXCHANGE;
    wait(r);
    return self.value;
}

void *emulation::shared(size_t bytes, size_t align) {
    Runner *r = runner;
    size_t &used = r->thread[r->current].shared;
    size_t start = (used + align - 1) / align * align;
    used = start + bytes;
    if (used > SHARED_BYTES) fail("the block shares %zu bytes, more than a GPU has for it", used);
    if (used > r->shared_used) r->shared_used = used;
    return r->shared + start;
}

void emulation::fail(const char *format, ...) {
    Runner *r = runner;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    error(r, "thread %u: %s", r->current, text);
    _longjmp(r->scheduler, 1);
}

namespace {

// The block that runs at a place of an order: 0 the first one first, 1 the last one first; any other number is an order of its own.
uint64_t block_at(uint64_t place, uint64_t blocks, int order) {
    if (order == 0) return place;
    if (order == 1) return blocks - 1 - place;
    // A step that has no divisor in common with the number of blocks reaches each of them.
    uint64_t step = uint64_t(order) * 2654435761u % blocks;
    while (step == 0 || std::gcd(step, blocks) != 1) step++;
    return (place * step + uint64_t(order)) % blocks;
}

}  // namespace

// Runs a kernel in an order of blocks, the last thread of a block first if it is 1. Returns 0, or -1 with a message.
extern "C" __attribute__((visibility("default"))) int emulation_run(void (*kernel)(const void *), const unsigned grid[3],
                                                                    unsigned block, const void *arguments, size_t bytes,
                                                                    int order, char *message, size_t message_bytes) {
    static thread_local Owner owner;
    Runner *r = runner = owner.runner;
    if (!r || block == 0 || block > THREADS || bytes > ARGUMENT_BYTES) {
        snprintf(message, message_bytes, "no memory, or a block of %u threads, or %zu bytes of arguments", block, bytes);
        return -1;
    }
    r->kernel = kernel;
    memcpy(r->arguments, arguments, bytes);
    r->threads = block;
    r->backwards = order == 1;
    r->message = message;
    r->message_bytes = message_bytes;
    r->failed = false;
    memset(r->shared, 0xff, sizeof(r->shared));
    r->shared_used = 0;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block, 1, 1};
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    for (uint64_t place = 0; place < blocks && !r->failed; place++) {
        uint64_t number = block_at(place, blocks, order);
        blockIdx = {(unsigned)(number % grid[0]), (unsigned)(number / grid[0] % grid[1]),
                    (unsigned)(number / grid[0] / grid[1])};
        run_block(r);
    }
    // Fibers of a failed kernel stand inside it.
    if (r->failed)
        for (Fiber &fiber : r->fiber) fiber.started = false;
    return r->failed ? -1 : 0;
}
