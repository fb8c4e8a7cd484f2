// Biases of rows, and their gradients.
#include "rows.h"

template <class E> struct Bias {
    const E *x;         // [rows, channels]
    const float *bias;  // [channels]
    E *y;               // [rows, channels]
    uint64_t rows;
    uint32_t channels;
};

template <int N, class E> struct BiasEach {
    const Bias<E> &a;
    float bias[N];

    __device__ __forceinline__ BiasEach(const Bias<E> &a, uint32_t channel) : a(a) { load_channels(a.bias, channel, bias); }

    __device__ __forceinline__ Packet<E, N> read(uint64_t index) const { return fetch<N>(a.x, index); }

    __device__ __forceinline__ void write(uint64_t index, const Packet<E, N> &values) const {
        float x[N];
        unpack(values, x);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] += bias[i];
        store(a.y, index, x);
    }
};

KERNEL(bias_f32, Bias<float>) { BY_CHANNELS(float, (for_rows<4, BiasEach<4, float>>(a)), (for_rows<1, BiasEach<1, float>>(a))) }
KERNEL(bias_bf16, Bias<bf16>) { BY_CHANNELS(bf16, (for_rows<8, BiasEach<8, bf16>>(a)), (for_rows<1, BiasEach<1, bf16>>(a))) }
KERNEL(bias_f16, Bias<f16>) { BY_CHANNELS(f16, (for_rows<8, BiasEach<8, f16>>(a)), (for_rows<1, BiasEach<1, f16>>(a))) }

struct BiasResults {
    float *sums;  // [channels]

    __device__ __forceinline__ void take(uint32_t channel, const float (&of)[1]) const { sums[channel] = of[0]; }
};

template <class E> struct BiasBackward {
    const E *dy;         // [rows, channels]
    float *partial;      // [chunks, 1, channels], or null
    uint32_t *counters;  // [slabs], or null
    uint64_t rows;
    uint32_t channels, packets, chunk;
    BiasResults results;
};

template <int N, class E> struct BiasTerms {
    const BiasBackward<E> &a;

    __device__ __forceinline__ BiasTerms(const BiasBackward<E> &a, uint32_t) : a(a) {}

    __device__ __forceinline__ void add(uint64_t index, Sums<1, N> &sums) const {
        float dy[N];
        load(a.dy, index, dy);
#pragma unroll
        for (int i = 0; i < N; i++) sums.of[0][i] += dy[i];
    }
};

KERNEL(bias_backward_f32, BiasBackward<float>) {
    BY_CHANNELS(float, (sum_rows<1, 4, BiasTerms<4, float>>(a)), (sum_rows<1, 1, BiasTerms<1, float>>(a)))
}
KERNEL(bias_backward_bf16, BiasBackward<bf16>) {
    BY_CHANNELS(bf16, (sum_rows<1, 8, BiasTerms<8, bf16>>(a)), (sum_rows<1, 1, BiasTerms<1, bf16>>(a)))
}
KERNEL(bias_backward_f16, BiasBackward<f16>) {
    BY_CHANNELS(f16, (sum_rows<1, 8, BiasTerms<8, f16>>(a)), (sum_rows<1, 1, BiasTerms<1, f16>>(a)))
}
