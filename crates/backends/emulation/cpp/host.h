// CUDA C++ on a CPU: what the kernels in crates/backends/cuda/kernels use of the language, in terms of host.cpp.
//
// Kernels keep to a plain subset. Threads of a block have one dimension. Shared memory is declared by SHARED, so that its
// contents can be made NaN before each block. Floats are rounded after every operation, as on a GPU (see make_binaries.py).
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict

struct uint3 {
    unsigned x, y, z;
};

// Vectors which a GPU moves by one instruction.
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Of the thread that runs. The model of access makes them cost as little as a global variable.
#define OF_THREAD extern __thread __attribute__((tls_model("initial-exec")))
OF_THREAD uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

// Where the source waits or reads other lanes.
struct Site {
    const char *file;
    int line;
};

// Waits for all threads of the block that have not ended.
void barrier(Site site);

// Waits for the lanes of `mask`, each of which gives a value, and returns that of lane `source`.
uint64_t exchange(Site site, uint32_t mask, uint64_t value, unsigned source);

// Memory of the block. All threads get the same in the same order.
void *shared(size_t bytes, size_t align);
template <class T> T &shared() { return *static_cast<T *>(shared(sizeof(T), alignof(T))); }

// Ends the kernel with an error.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

[[noreturn]] static inline void misaligned(Site site, size_t bytes) {
    fail("%s:%d: %zu bytes at an address that is no multiple of that", site.file, site.line, bytes);
}

template <class T> T shuffle(Site site, uint32_t mask, T value, unsigned source) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "too large for a shuffle");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = exchange(site, mask, bits, source);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

static inline unsigned lane() { return threadIdx.x % 32; }

// A lane without a source in its group of `width` lanes keeps its own value.
static inline unsigned within(unsigned lane, unsigned source, unsigned width) {
    return source / width == lane / width ? source : lane;
}

}  // namespace emulation

#define SITE (emulation::Site{__FILE__, __LINE__})
#define __syncthreads() emulation::barrier(SITE)
#define __syncwarp() (void)emulation::exchange(SITE, 0xffffffffu, 0, emulation::lane())
#define __shfl_sync(mask, value, source) emulation::shuffle(SITE, mask, value, (source) % 32u)
#define __shfl_down_sync(mask, value, delta) \
    emulation::shuffle(SITE, mask, value, emulation::within(emulation::lane(), emulation::lane() + (delta), 32))
#define __shfl_xor_sync(mask, value, bits) emulation::shuffle(SITE, mask, value, emulation::lane() ^ (bits))

// Memory that a block shares: SHARED(float[32][33], tile). It stands before any branch, and comes to at most 48 KiB.
#define SHARED(T, name) auto &name = emulation::shared<T>()

// An access of several values at once, which a GPU refuses at any other address.
#define CHECK_ALIGNED(address, bytes)                                              \
    do {                                                                           \
        if ((uintptr_t)(address) % (bytes) != 0) emulation::misaligned(SITE, bytes); \
    } while (0)

// The function that runs one thread, and the size of the struct that it takes.
#define KERNEL(name, Arguments)                                                                                  \
    static inline void name##_body(const Arguments &a);                                                          \
    extern "C" __attribute__((visibility("default"))) const unsigned long name##_size = sizeof(Arguments);       \
    extern "C" __attribute__((visibility("default"))) void name(const void *arguments) {                         \
        name##_body(*static_cast<const Arguments *>(arguments));                                                 \
    }                                                                                                            \
    static inline void name##_body(const Arguments &a)

static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// Blocks run one after another, so what one has written is there for the next.
#define __threadfence() (void)0
template <class T> static inline T __ldcg(const T *from) { return *from; }

// Counts up to `most`, and then from 0 on. Returns what was there.
static inline unsigned atomicInc(unsigned *at, unsigned most) {
    unsigned before = *at;
    *at = before >= most ? 0 : before + 1;
    return before;
}

static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

// Of integers: a GPU's functions of floats drop NaN.
template <class T> static inline T min(T a, T b) {
    static_assert(T(1) / 2 == 0, "fminf says what it does");
    return b < a ? b : a;
}

template <class T> static inline T max(T a, T b) {
    static_assert(T(1) / 2 == 0, "fmaxf says what it does");
    return a < b ? b : a;
}
