// Products with one factor for each channel, of all samples or of each one. F is the type of the factors, E or f32.
#include "rows.h"

template <class E, class F> struct Multiply {
    const E *a;  // [groups, rows, channels]
    const F *b;  // [groups, channels]
    E *c;        // [groups, rows, channels]
    uint64_t elements;
    uint64_t group;  // rows * channels
    uint32_t channels;
};

template <class E, class F> __device__ __forceinline__ void multiply(const Multiply<E, F> &a) {
    uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t index = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; index < a.elements; index += threads) {
        float factor = to_float(a.b[index / a.group * a.channels + index % a.channels]);
        from_float(to_float(a.a[index]) * factor, a.c[index]);
    }
}

using MultiplyF32 = Multiply<float, float>;
using MultiplyBf16 = Multiply<bf16, bf16>;
using MultiplyF16 = Multiply<f16, f16>;
using MultiplyBf16ByF32 = Multiply<bf16, float>;
using MultiplyF16ByF32 = Multiply<f16, float>;

KERNEL(multiply_channels_f32_f32, MultiplyF32) { multiply(a); }
KERNEL(multiply_channels_bf16_bf16, MultiplyBf16) { multiply(a); }
KERNEL(multiply_channels_f16_f16, MultiplyF16) { multiply(a); }
KERNEL(multiply_channels_bf16_f32, MultiplyBf16ByF32) { multiply(a); }
KERNEL(multiply_channels_f16_f32, MultiplyF16ByF32) { multiply(a); }

struct ReduceResults {
    float *db;  // [channels]

    __device__ __forceinline__ void take(uint32_t channel, const float (&of)[1]) const { db[channel] = of[0]; }
};

// The sums of products of all rows.
template <class E> struct Reduce {
    const E *dy;         // [rows, channels]
    const E *a;          // [rows, channels]
    float *partial;      // [chunks, 1, channels], or null
    uint32_t *counters;  // [slabs], or null
    uint64_t rows;
    uint32_t channels, packets, chunk;
    ReduceResults results;
};

template <int N, class E> struct ReduceTerms {
    const Reduce<E> &a;

    __device__ __forceinline__ ReduceTerms(const Reduce<E> &a, uint32_t) : a(a) {}

    __device__ __forceinline__ void add(uint64_t index, Sums<1, N> &sums) const {
        float dy[N], x[N];
        load(a.dy, index, dy);
        load(a.a, index, x);
#pragma unroll
        for (int i = 0; i < N; i++) sums.of[0][i] = fmaf(dy[i], x[i], sums.of[0][i]);
    }
};

KERNEL(multiply_reduce_f32, Reduce<float>) {
    BY_CHANNELS(float, (sum_rows<1, 4, ReduceTerms<4, float>>(a)), (sum_rows<1, 1, ReduceTerms<1, float>>(a)))
}
KERNEL(multiply_reduce_bf16, Reduce<bf16>) {
    BY_CHANNELS(bf16, (sum_rows<1, 8, ReduceTerms<8, bf16>>(a)), (sum_rows<1, 1, ReduceTerms<1, bf16>>(a)))
}
KERNEL(multiply_reduce_f16, Reduce<f16>) {
    BY_CHANNELS(f16, (sum_rows<1, 8, ReduceTerms<8, f16>>(a)), (sum_rows<1, 1, ReduceTerms<1, f16>>(a)))
}

// The sums of products of each group's rows. A block has 32 channels of a group, and 8 threads for each.
template <class E, class F> struct ReduceGroups {
    const E *dy;  // [groups, rows, channels]
    const E *a;   // [groups, rows, channels]
    F *db;        // [groups, channels]
    uint64_t rows;
    uint32_t channels;
};

template <class E, class F> __device__ __forceinline__ void reduce_groups(const ReduceGroups<E, F> &a) {
    const uint32_t COLUMNS = 32;
    SHARED(float[256], sums);
    const uint32_t channel = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS, lanes = blockDim.x / COLUMNS;
    const uint64_t first = blockIdx.y * a.rows * a.channels + channel;
    float sum = 0.0f;
    if (channel < a.channels) {
        for (uint64_t row = threadIdx.x / COLUMNS; row < a.rows; row += lanes) {
            const uint64_t index = first + row * a.channels;
            sum = fmaf(to_float(a.dy[index]), to_float(a.a[index]), sum);
        }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= COLUMNS || channel >= a.channels) return;
    for (uint32_t lane = 1; lane < lanes; lane++) sum += sums[lane * COLUMNS + threadIdx.x];
    from_float(sum, a.db[blockIdx.y * (uint64_t)a.channels + channel]);
}

using ReduceGroupsF32 = ReduceGroups<float, float>;
using ReduceGroupsBf16 = ReduceGroups<bf16, bf16>;
using ReduceGroupsF16 = ReduceGroups<f16, f16>;
using ReduceGroupsBf16ToF32 = ReduceGroups<bf16, float>;
using ReduceGroupsF16ToF32 = ReduceGroups<f16, float>;

KERNEL(multiply_reduce_groups_f32_f32, ReduceGroupsF32) { reduce_groups(a); }
KERNEL(multiply_reduce_groups_bf16_bf16, ReduceGroupsBf16) { reduce_groups(a); }
KERNEL(multiply_reduce_groups_f16_f16, ReduceGroupsF16) { reduce_groups(a); }
KERNEL(multiply_reduce_groups_bf16_f32, ReduceGroupsBf16ToF32) { reduce_groups(a); }
KERNEL(multiply_reduce_groups_f16_f32, ReduceGroupsF16ToF32) { reduce_groups(a); }
