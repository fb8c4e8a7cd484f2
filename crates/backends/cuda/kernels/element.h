// The element types of maps, f32, bf16 and f16, and several of them at once. Arithmetic is in f32.
#pragma once

#include "kernel.h"

struct bf16 {
    uint16_t bits;
};

__device__ __forceinline__ float to_float(float value) { return value; }

__device__ __forceinline__ float to_float(bf16 value) { return __uint_as_float((uint32_t)value.bits << 16); }

__device__ __forceinline__ void from_float(float value, float &to) { to = value; }

// The bits of a number whose upper half is the nearest bf16, of two equally near ones the even one.
__device__ __forceinline__ uint32_t half_up(uint32_t bits) { return bits + 0x7fffu + (bits >> 16 & 1u); }

// GPUs from compute capability 8.0 on convert to bf16 in one instruction. Its bits are those of `half_up`, but for NaN, of which it
// keeps neither sign nor payload.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define CONVERTS_BF16
#endif

// As `Bf16::from_f32`: NaN stays NaN.
__device__ __forceinline__ void from_float(float value, bf16 &to) {
#ifdef CONVERTS_BF16
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
#else
    uint32_t bits = __float_as_uint(value);
    // Quiet, because a NaN with fraction bits only in the lower half would become infinity.
    to.bits = (uint16_t)((value == value ? half_up(bits) : bits | 0x00400000u) >> 16);
#endif
}

struct f16 {
    uint16_t bits;
};

// A GPU converts f16 in one instruction. The host does the same with integers, but for the payload of NaN.
__device__ __forceinline__ float to_float(f16 value) {
#ifdef __CUDACC_RTC__
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
#else
    const uint32_t sign = (value.bits & 0x8000u) << 16, size = value.bits & 0x7fffu;
    if (size >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | size << 13);
    if (size >= 0x0400u) return __uint_as_float(sign | ((size << 13) + (112u << 23)));
    // Multiples of 2^-24, which is the last place of 0.5.
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(0x3f000000u + size) - 0.5f));
#endif
}

// To the nearest f16, of two equally near ones the even one; from 65520 on that is infinity.
__device__ __forceinline__ void from_float(float value, f16 &to) {
#ifdef __CUDACC_RTC__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
#else
    const uint32_t bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    uint32_t rounded = 0x7c00u;
    if (size > 0x7f800000u) {
        rounded = 0x7e00u | (size >> 13 & 0x3ffu);
    } else if (size < 0x38800000u) {
        rounded = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u;
    } else if (size < 0x47800000u) {
        rounded = (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
    }
    to.bits = (uint16_t)(sign | rounded);
#endif
}

// What a rectifier makes of x: values at or below `floor` become that, those at or above `ceiling` become that. NaN stays NaN.
__device__ __forceinline__ float rectified(float x, float floor, float ceiling) {
    return x <= floor ? floor : x >= ceiling ? ceiling : x;
}

// Whether the gradient passes where a rectifier has made y.
__device__ __forceinline__ bool passes(float y, float ceiling) { return y > 0.0f && y < ceiling; }

// The limits between which a result has to lie before it is stored, so that what is stored lies between 0 and `ceiling`, which
// is even. In 16 bits those are the midpoints to the next values inside, which are rounded to the limits.
template <class E> struct Limits {
    float low, high;
    __device__ __forceinline__ explicit Limits(float ceiling) : low(0.0f), high(ceiling) {}
    __device__ __forceinline__ bool pass(float y) const { return y > low && y < high; }
};

template <>
__device__ __forceinline__ Limits<bf16>::Limits(float ceiling)
    : low(__uint_as_float(0x00008000u)), high(__uint_as_float(__float_as_uint(ceiling) - 0x00008000u)) {}

// Without a ceiling the limit is the midpoint from the largest f16 to where the next would be.
template <>
__device__ __forceinline__ Limits<f16>::Limits(float ceiling)
    : low(__uint_as_float(0x33000000u)),
      high(ceiling > 65504.0f ? 65520.0f : __uint_as_float(__float_as_uint(ceiling) - 0x00001000u)) {}

// Elements that one instruction moves: 16 bytes, or a single element. Their address is a multiple of their size.
template <class E, int N> struct alignas(sizeof(E) * N) Packet {
    E at[N];
};

// Elements in 16 bytes.
template <class E> struct Wide {
    static const int N = 16 / sizeof(E);
};

// N elements from `index` on, as they are stored.
template <int N, class E> __device__ __forceinline__ Packet<E, N> fetch(const E *from, uint64_t index) {
    CHECK_ALIGNED(from + index, sizeof(E) * N);
    return *reinterpret_cast<const Packet<E, N> *>(from + index);
}

template <int N> __device__ __forceinline__ void unpack(const Packet<float, N> &packet, float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = packet.at[i];
}

// Two at a time, which are one register.
template <int N> __device__ __forceinline__ void unpack(const Packet<bf16, N> &packet, float (&values)[N]) {
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        uint32_t pair = (uint32_t)packet.at[i + 1].bits << 16 | packet.at[i].bits;
        values[i] = __uint_as_float(pair << 16);
        values[i + 1] = __uint_as_float(pair & 0xffff0000u);
    }
    if (N % 2 == 1) values[N - 1] = to_float(packet.at[N - 1]);
}

template <int N> __device__ __forceinline__ void unpack(const Packet<f16, N> &packet, float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = to_float(packet.at[i]);
}

template <int N> __device__ __forceinline__ void pack(const float (&values)[N], Packet<f16, N> &packet) {
#pragma unroll
    for (int i = 0; i < N; i++) from_float(values[i], packet.at[i]);
}

template <int N> __device__ __forceinline__ void pack(const float (&values)[N], Packet<float, N> &packet) {
#pragma unroll
    for (int i = 0; i < N; i++) packet.at[i] = values[i];
}

#ifdef CONVERTS_BF16
// Two in one instruction.
template <int N> __device__ __forceinline__ void pack(const float (&values)[N], Packet<bf16, N> &packet) {
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        uint32_t pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(values[i + 1]), "f"(values[i]));
        packet.at[i].bits = (uint16_t)pair;
        packet.at[i + 1].bits = (uint16_t)(pair >> 16);
    }
    if (N % 2 == 1) from_float(values[N - 1], packet.at[N - 1]);
}
#else
// A number takes three instructions to round, and NaN half as many again, so all are looked for NaN and infinity at once.
template <int N> __device__ __forceinline__ void pack(const float (&values)[N], Packet<bf16, N> &packet) {
    float zero = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) zero = fmaf(values[i], 0.0f, zero);
    if (zero == 0.0f) {
        uint32_t bits[N];
#pragma unroll
        for (int i = 0; i < N; i++) bits[i] = half_up(__float_as_uint(values[i]));
#pragma unroll
        for (int i = 0; i + 1 < N; i += 2) {
            uint32_t pair = (bits[i + 1] & 0xffff0000u) | bits[i] >> 16;
            packet.at[i].bits = (uint16_t)pair;
            packet.at[i + 1].bits = (uint16_t)(pair >> 16);
        }
        if (N % 2 == 1) packet.at[N - 1].bits = (uint16_t)(bits[N - 1] >> 16);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) from_float(values[i], packet.at[i]);
    }
}
#endif

// N elements from `index` on, as f32.
template <int N, class E> __device__ __forceinline__ void load(const E *from, uint64_t index, float (&values)[N]) {
    unpack(fetch<N>(from, index), values);
}

// The opposite of `fetch`.
template <int N, class E> __device__ __forceinline__ void put(E *to, uint64_t index, const Packet<E, N> &packet) {
    CHECK_ALIGNED(to + index, sizeof(E) * N);
    *reinterpret_cast<Packet<E, N> *>(to + index) = packet;
}

template <int N, class E> __device__ __forceinline__ void store(E *to, uint64_t index, const float (&values)[N]) {
    Packet<E, N> packet;
    pack(values, packet);
    put(to, index, packet);
}

// Calls `each.template at<N>(index)` for all of `elements`, by 16 bytes and at the end one by one. Arrays begin at
// multiples of 16 bytes.
template <class E, class Each> __device__ __forceinline__ void for_elements(uint64_t elements, Each each) {
    const int N = Wide<E>::N;
    uint64_t thread = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    uint64_t packets = elements / N;
    for (uint64_t packet = thread; packet < packets; packet += threads) each.template at<N>(packet * N);
    uint64_t index = packets * N + thread;
    if (index < elements) each.template at<1>(index);
}
