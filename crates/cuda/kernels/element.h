// The element types of maps, f32 and bf16, and several of them at once. Arithmetic is in f32.
#pragma once

#include "kernel.h"

struct bf16 {
    uint16_t bits;
};

__device__ __forceinline__ float to_float(float value) { return value; }

__device__ __forceinline__ float to_float(bf16 value) { return __uint_as_float((uint32_t)value.bits << 16); }

__device__ __forceinline__ void from_float(float value, float &to) { to = value; }

// Rounds to nearest, of two equally near ones to the even one; NaN stays NaN with its sign, as in `Bf16::from_f32`.
__device__ __forceinline__ void from_float(float value, bf16 &to) {
    uint32_t bits = __float_as_uint(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    // Quiet, because a NaN with fraction bits only in the lower half would become infinity.
    uint32_t nan = bits >> 16 | 0x0040u;
    to.bits = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// The value that a map of this type holds in its place.
template <class E> __device__ __forceinline__ float rounded(float value) {
    E stored;
    from_float(value, stored);
    return to_float(stored);
}

// What a rectifier makes of x: values at or below `floor` become that, those at or above `ceiling` become that. NaN stays NaN.
__device__ __forceinline__ float rectified(float x, float floor, float ceiling) {
    return x <= floor ? floor : x >= ceiling ? ceiling : x;
}

// Whether the gradient passes where a rectifier has made y.
__device__ __forceinline__ bool passes(float y, float ceiling) { return y > 0.0f && y < ceiling; }

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

template <int N, class E> __device__ __forceinline__ void unpack(const Packet<E, N> &packet, float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = to_float(packet.at[i]);
}

// N elements from `index` on, as f32.
template <int N, class E> __device__ __forceinline__ void load(const E *from, uint64_t index, float (&values)[N]) {
    unpack(fetch<N>(from, index), values);
}

template <int N, class E> __device__ __forceinline__ void store(E *to, uint64_t index, const float (&values)[N]) {
    CHECK_ALIGNED(to + index, sizeof(E) * N);
    Packet<E, N> packet;
#pragma unroll
    for (int i = 0; i < N; i++) from_float(values[i], packet.at[i]);
    *reinterpret_cast<Packet<E, N> *>(to + index) = packet;
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
