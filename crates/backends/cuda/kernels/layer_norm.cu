// Layer norm and its gradients. A block takes one row at a time; sums over rows are divided as those of batch norm.
#include "block.h"
#include "rows.h"

template <class E> struct Forward {
    const E *x;           // [rows, channels]
    const float *weight;  // [channels]
    const float *bias;    // [channels]
    E *y;                 // [rows, channels]
    float *mean;          // [rows]
    float *inverse_std;   // [rows]
    uint64_t rows;
    uint32_t channels;
    float epsilon;
};

template <class E> __device__ __forceinline__ void forward(const Forward<E> &a) {
    SHARED(float[256], shared);
    for (uint64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const E *x = a.x + row * a.channels;
        float sum = 0.0f;
        for (uint32_t at = threadIdx.x; at < a.channels; at += blockDim.x) sum += to_float(x[at]);
        const float mean = block_sum(shared, sum) / (float)a.channels;
        float squares = 0.0f;
        for (uint32_t at = threadIdx.x; at < a.channels; at += blockDim.x) {
            float deviation = to_float(x[at]) - mean;
            squares = fmaf(deviation, deviation, squares);
        }
        const float variance = block_sum(shared, squares) / (float)a.channels;
        const float inverse = 1.0f / sqrtf(variance + a.epsilon);
        for (uint32_t at = threadIdx.x; at < a.channels; at += blockDim.x) {
            float normalized = (to_float(x[at]) - mean) * inverse;
            from_float(fmaf(normalized, a.weight[at], a.bias[at]), a.y[row * a.channels + at]);
        }
        if (threadIdx.x == 0) {
            a.mean[row] = mean;
            a.inverse_std[row] = inverse;
        }
    }
}

KERNEL(layer_norm_f32, Forward<float>) { forward(a); }
KERNEL(layer_norm_bf16, Forward<bf16>) { forward(a); }
KERNEL(layer_norm_f16, Forward<f16>) { forward(a); }

template <class E> struct Backward {
    const E *dy;               // [rows, channels]
    const E *x;                // [rows, channels]
    const float *mean;         // [rows]
    const float *inverse_std;  // [rows]
    const float *weight;       // [channels]
    E *dx;                     // [rows, channels]
    uint64_t rows;
    uint32_t channels;
};

template <class E> __device__ __forceinline__ void backward(const Backward<E> &a) {
    SHARED(float[256], shared);
    for (uint64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const uint64_t first = row * a.channels;
        const float mean = a.mean[row], inverse = a.inverse_std[row];
        float sum = 0.0f, product = 0.0f;
        for (uint32_t at = threadIdx.x; at < a.channels; at += blockDim.x) {
            float weighted = to_float(a.dy[first + at]) * a.weight[at];
            sum += weighted;
            product = fmaf(weighted, (to_float(a.x[first + at]) - mean) * inverse, product);
        }
        const float average = block_sum(shared, sum) / (float)a.channels;
        const float along = block_sum(shared, product) / (float)a.channels;
        for (uint32_t at = threadIdx.x; at < a.channels; at += blockDim.x) {
            float weighted = to_float(a.dy[first + at]) * a.weight[at];
            float normalized = (to_float(a.x[first + at]) - mean) * inverse;
            from_float((weighted - average - normalized * along) * inverse, a.dx[first + at]);
        }
    }
}

KERNEL(layer_norm_backward_f32, Backward<float>) { backward(a); }
KERNEL(layer_norm_backward_bf16, Backward<bf16>) { backward(a); }
KERNEL(layer_norm_backward_f16, Backward<f16>) { backward(a); }

struct ReduceResults {
    float *dbias;    // [channels]
    float *dweight;  // [channels]

    __device__ __forceinline__ void take(uint32_t channel, const float (&of)[2]) const {
        dbias[channel] = of[0];
        dweight[channel] = of[1];
    }
};

template <class E> struct Reduce {
    const E *dy;               // [rows, channels]
    const E *x;                // [rows, channels]
    const float *mean;         // [rows]
    const float *inverse_std;  // [rows]
    float *partial;            // [chunks, 2, channels], or null
    uint32_t *counters;        // [slabs], or null
    uint64_t rows;
    uint32_t channels, packets, chunk;
    ReduceResults results;
};

template <int N, class E> struct ReduceTerms {
    const Reduce<E> &a;

    __device__ __forceinline__ ReduceTerms(const Reduce<E> &a, uint32_t) : a(a) {}

    __device__ __forceinline__ void add(uint64_t index, Sums<2, N> &sums) const {
        const uint64_t row = index / a.channels;
        const float mean = a.mean[row], inverse = a.inverse_std[row];
        float dy[N], x[N];
        load(a.dy, index, dy);
        load(a.x, index, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            sums.of[0][i] += dy[i];
            sums.of[1][i] = fmaf(dy[i], (x[i] - mean) * inverse, sums.of[1][i]);
        }
    }
};

KERNEL(layer_norm_reduce_f32, Reduce<float>) {
    BY_CHANNELS(float, (sum_rows<2, 4, ReduceTerms<4, float>>(a)), (sum_rows<2, 1, ReduceTerms<1, float>>(a)))
}
KERNEL(layer_norm_reduce_bf16, Reduce<bf16>) {
    BY_CHANNELS(bf16, (sum_rows<2, 8, ReduceTerms<8, bf16>>(a)), (sum_rows<2, 1, ReduceTerms<1, bf16>>(a)))
}
KERNEL(layer_norm_reduce_f16, Reduce<f16>) {
    BY_CHANNELS(f16, (sum_rows<2, 8, ReduceTerms<8, f16>>(a)), (sum_rows<2, 1, ReduceTerms<1, f16>>(a)))
}
