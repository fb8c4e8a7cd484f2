// Batch norm: statistics, normalisation with residual and rectifier, and its gradients.
#include "rows.h"

__device__ __forceinline__ float inverse_deviation(float variance, float epsilon) {
    return 1.0f / sqrtf(variance + epsilon);
}

// Mean of some values, and the sum of squared deviations from it.
template <int N> struct Moments {
    float count;
    float mean[N], squares[N];

    // Chan's formula.
    __device__ __forceinline__ void combine(const Moments &other) {
        float sum = count + other.count;
        float share = sum == 0.0f ? 0.0f : other.count / sum;
#pragma unroll
        for (int i = 0; i < N; i++) {
            float delta = other.mean[i] - mean[i];
            mean[i] = fmaf(delta, share, mean[i]);
            squares[i] += fmaf(delta * delta, count * share, other.squares[i]);
        }
        count = sum;
    }
};

// A shard's share of the running statistics of a channel.
struct Running {
    float *update;   // [2, channels], or null
    float unbiased;  // count / (count - 1)
    float shards;

    __device__ __forceinline__ void take(uint32_t channel, uint32_t channels, float mean, float variance) const {
        update[channel] = mean / shards;
        update[channels + channel] = variance * unbiased / shards;
    }
};

struct StatisticsResults {
    float *mean;      // [channels]
    float *variance;  // [channels]
    Running running;

    __device__ __forceinline__ void take(uint32_t channel, uint32_t channels, float average, float spread) const {
        mean[channel] = average;
        variance[channel] = spread;
        if (running.update != nullptr) running.take(channel, channels, average, spread);
    }
};

template <class E> struct Statistics {
    const E *x;          // [rows, channels]
    float *partial;      // [chunks, 2, channels]: means, sums of squared deviations; or null
    uint32_t *counters;  // [slabs], or null
    uint64_t rows;
    uint32_t channels, packets, chunk;
    StatisticsResults results;
};

// Rows whose mean is a thread's pivot.
const uint32_t PIVOT_ROWS = 4;

// A thread adds deviations from the mean of its first rows, and their squares. That mean lies among its values, so a large mean
// costs no accuracy.
template <int N, class E> __device__ __forceinline__ void statistics(const Statistics<E> &a) {
    SHARED(Moments<N>[256], all);
    SHARED(bool, is_last);
    Share s = share<N>(a);
    Moments<N> moments = {};
    if (s.works && s.first < s.end) {
        uint32_t count = (uint32_t)((s.end - s.first + s.lanes - 1) / s.lanes);
        float pivot[N] = {}, sum[N] = {}, squares[N] = {}, x[N];
        // Where there are fewer, the last one counts more than once. So all are read at the same time.
#pragma unroll
        for (uint32_t i = 0; i < PIVOT_ROWS; i++) {
            load(a.x, (s.first + (uint64_t)min(i, count - 1) * s.lanes) * a.channels + s.channel, x);
#pragma unroll
            for (int j = 0; j < N; j++) pivot[j] += x[j] * (1.0f / PIVOT_ROWS);
        }
#pragma unroll 4
        for (uint64_t row = s.first; row < s.end; row += s.lanes) {
            load(a.x, row * a.channels + s.channel, x);
#pragma unroll
            for (int j = 0; j < N; j++) {
                float deviation = x[j] - pivot[j];
                sum[j] += deviation;
                squares[j] = fmaf(deviation, deviation, squares[j]);
            }
        }
        moments.count = (float)count;
        float share = 1.0f / moments.count;
#pragma unroll
        for (int j = 0; j < N; j++) {
            float mean = sum[j] * share;
            moments.mean[j] = pivot[j] + mean;
            // Rounding must not make it negative. NaN stays NaN.
            float about_mean = fmaf(-sum[j], mean, squares[j]);
            moments.squares[j] = about_mean < 0.0f ? 0.0f : about_mean;
        }
    }
    all[threadIdx.x] = moments;
    combine_lanes(all, s.lanes, a.packets);
    if (s.works && s.lane == 0) {
        const Moments<N> &found = all[threadIdx.x];
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (a.partial == nullptr) {
                a.results.take(s.channel + j, a.channels, found.mean[j], found.squares[j] / (float)a.rows);
            } else {
                float *mean = a.partial + (uint64_t)blockIdx.y * 2 * a.channels + s.channel + j;
                mean[0] = found.mean[j];
                mean[a.channels] = found.squares[j];
            }
        }
    }
    if (a.partial == nullptr || !is_last_of_slab(a.counters, is_last)) return;
    const int V = COLUMN<N>;
    auto add = [&](uint32_t chunk, uint32_t channel, Moments<V> &moments) {
        Moments<V> of_chunk;
        of_chunk.count = (float)min((uint64_t)a.chunk, a.rows - (uint64_t)chunk * a.chunk);
        const float *mean = a.partial + (uint64_t)chunk * 2 * a.channels + channel;
        load_fresh(mean, 0, of_chunk.mean);
        load_fresh(mean, a.channels, of_chunk.squares);
        moments.combine(of_chunk);
    };
    auto take = [&](uint32_t channel, const Moments<V> &moments) {
#pragma unroll
        for (int j = 0; j < V; j++)
            a.results.take(channel + j, a.channels, moments.mean[j], moments.squares[j] / (float)a.rows);
    };
    combine_chunks<V>(reinterpret_cast<Moments<V>(&)[256]>(all), s, add, take);
}

template <class E> struct Normalize {
    const E *x;             // [rows, channels]
    const float *mean;      // [channels], as all below
    const float *variance;
    const float *weight;
    const float *bias;
    const E *residual;      // [rows, channels], or null
    E *y;                   // [rows, channels]
    uint8_t *passed;        // a byte for each packet of y, or null
    uint64_t rows;
    uint32_t channels;
    float epsilon;
    float floor, ceiling;
};

// Writes which of a packet's values a ReLU lets pass, a bit each. It costs less than to read the stored result again, or to
// compute it again: registers for that would leave an SM two blocks of a gradient instead of three.
template <int N, class E>
__device__ __forceinline__ void store_passed(uint8_t *passed, uint64_t index, const float (&y)[N], Limits<E> limits) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < N; i++) bits |= (limits.pass(y[i]) ? 1u : 0u) << i;
    passed[index / N] = (uint8_t)bits;
}

template <int N, class E> struct NormalizeEach {
    const Normalize<E> &a;
    float mean[N], scale[N], bias[N];

    struct Values {
        Packet<E, N> x, residual;
    };

    __device__ __forceinline__ NormalizeEach(const Normalize<E> &a, uint32_t channel) : a(a) {
        float variance[N];
        load_channels(a.mean, channel, mean);
        load_channels(a.variance, channel, variance);
        load_channels(a.weight, channel, scale);
        load_channels(a.bias, channel, bias);
#pragma unroll
        for (int i = 0; i < N; i++) scale[i] *= inverse_deviation(variance[i], a.epsilon);
    }

    __device__ __forceinline__ Values read(uint64_t index) const {
        Values values = {fetch<N>(a.x, index), {}};
        if (a.residual) values.residual = fetch<N>(a.residual, index);
        return values;
    }

    __device__ __forceinline__ void write(uint64_t index, const Values &values) const {
        float x[N], residual[N];
        unpack(values.x, x);
        unpack(values.residual, residual);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = fmaf(x[i] - mean[i], scale[i], bias[i]);
            if (a.residual) x[i] += residual[i];
        }
        if (a.passed) store_passed(a.passed, index, x, Limits<E>(a.ceiling));
        // The same way for all threads, so that what is not needed costs nothing.
        if (a.floor == 0.0f) {
#pragma unroll
            for (int i = 0; i < N; i++) x[i] = x[i] <= 0.0f ? 0.0f : x[i];
        }
        if (a.ceiling == 6.0f) {
#pragma unroll
            for (int i = 0; i < N; i++) x[i] = x[i] >= 6.0f ? 6.0f : x[i];
        }
        store(a.y, index, x);
    }
};

// dy where the forward's ReLU let its result pass, else 0.
template <int N> __device__ __forceinline__ Packet<float, N> masked(Packet<float, N> dy, uint32_t passed) {
#pragma unroll
    for (int i = 0; i < N; i++) dy.at[i] = passed >> i & 1u ? dy.at[i] : 0.0f;
    return dy;
}

// Two at a time, which are one register.
template <int N, class E> __device__ __forceinline__ Packet<E, N> masked(Packet<E, N> dy, uint32_t passed) {
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        uint32_t mask = (passed >> i & 1u ? 0x0000ffffu : 0u) | (passed >> i & 2u ? 0xffff0000u : 0u);
        uint32_t pair = ((uint32_t)dy.at[i + 1].bits << 16 | dy.at[i].bits) & mask;
        dy.at[i].bits = (uint16_t)pair;
        dy.at[i + 1].bits = (uint16_t)(pair >> 16);
    }
    if (N % 2 == 1 && !(passed >> (N - 1) & 1u)) dy.at[N - 1].bits = 0;
    return dy;
}

struct ReduceResults {
    const float *variance;  // [channels]
    float *dbias;           // [channels]
    float *dweight;         // [channels]
    float epsilon;

    __device__ __forceinline__ void take(uint32_t channel, const float (&of)[2]) const {
        dbias[channel] = of[0];
        dweight[channel] = of[1] * inverse_deviation(variance[channel], epsilon);
    }
};

template <class E> struct Reduce {
    const E *dy;            // [rows, channels]
    const E *x;             // [rows, channels]
    const float *mean;      // [channels]
    const uint8_t *passed;  // as the forward wrote it; if GATED
    float *partial;         // [chunks, 2, channels], or null
    uint32_t *counters;     // [slabs], or null
    uint64_t rows;
    uint32_t channels, packets, chunk;
    ReduceResults results;
};

template <bool GATED, int N, class E> struct ReduceTerms {
    const Reduce<E> &a;
    float mean[N];

    __device__ __forceinline__ ReduceTerms(const Reduce<E> &a, uint32_t channel) : a(a) {
        load_channels(a.mean, channel, mean);
    }

    __device__ __forceinline__ void add(uint64_t index, Sums<2, N> &sums) const {
        float dy[N], x[N];
        Packet<E, N> packet = fetch<N>(a.dy, index);
        load(a.x, index, x);
        if constexpr (GATED) packet = masked(packet, a.passed[index / N]);
        unpack(packet, dy);
#pragma unroll
        for (int i = 0; i < N; i++) {
            sums.of[0][i] += dy[i];
            sums.of[1][i] = fmaf(dy[i], x[i] - mean[i], sums.of[1][i]);
        }
    }
};

template <class E> struct Backward {
    const E *dy;            // [rows, channels]
    const E *x;             // [rows, channels]
    const float *mean;      // [channels], as all below
    const float *variance;
    const float *weight;
    const float *dbias;     // null with running statistics
    const float *dweight;   // the same
    const uint8_t *passed;  // as the forward wrote it; if GATED
    E *dx;                  // [rows, channels]
    E *dresidual;           // [rows, channels], or null
    uint64_t rows;
    uint32_t channels;
    float epsilon;
    float share;            // 1 / number of pixels in the statistics
};

// dx = dy * scale + (x - mean) * slope + shift
template <bool GATED, int N, class E> struct BackwardEach {
    const Backward<E> &a;
    float mean[N], scale[N], slope[N], shift[N];

    struct Values {
        Packet<E, N> dy, x;
        uint32_t passed;
    };

    __device__ __forceinline__ BackwardEach(const Backward<E> &a, uint32_t channel) : a(a) {
        float variance[N];
        load_channels(a.mean, channel, mean);
        load_channels(a.variance, channel, variance);
        load_channels(a.weight, channel, scale);
        if (a.dbias) {
            load_channels(a.dbias, channel, shift);
            load_channels(a.dweight, channel, slope);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            float inverse = inverse_deviation(variance[i], a.epsilon);
            scale[i] *= inverse;
            slope[i] = a.dbias ? -(slope[i] * inverse * a.share * scale[i]) : 0.0f;
            shift[i] = a.dbias ? -(shift[i] * a.share * scale[i]) : 0.0f;
        }
    }

    __device__ __forceinline__ Values read(uint64_t index) const {
        Values values = {fetch<N>(a.dy, index), {}, 0};
        if (a.dbias) values.x = fetch<N>(a.x, index);
        if constexpr (GATED) values.passed = a.passed[index / N];
        return values;
    }

    __device__ __forceinline__ void write(uint64_t index, const Values &values) const {
        float dy[N], x[N];
        Packet<E, N> packet = values.dy;
        if constexpr (GATED) packet = masked(packet, values.passed);
        if (a.dresidual) put(a.dresidual, index, packet);
        unpack(packet, dy);
        unpack(values.x, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            // With running statistics x is not read.
            float inner = a.dbias ? fmaf(x[i] - mean[i], slope[i], shift[i]) : 0.0f;
            dy[i] = fmaf(dy[i], scale[i], inner);
        }
        store(a.dx, index, dy);
    }
};

#define BATCH_NORM(E, suffix)                                                                                            \
    KERNEL_BY(4, batch_norm_statistics_##suffix, Statistics<E>) {                                                        \
        BY_CHANNELS(E, statistics<Wide<E>::N>(a), statistics<1>(a))                                                      \
    }                                                                                                                    \
    KERNEL_BY(3, batch_norm_normalize_##suffix, Normalize<E>) {                                                          \
        BY_CHANNELS(E, (for_rows<Wide<E>::N, NormalizeEach<Wide<E>::N, E>>(a)), (for_rows<1, NormalizeEach<1, E>>(a)))   \
    }                                                                                                                    \
    GRADIENTS(E, false, suffix)                                                                                          \
    GRADIENTS(E, true, gated_##suffix)

#define GRADIENTS(E, GATED, suffix)                                                                                  \
    KERNEL_BY(4, batch_norm_reduce_##suffix, Reduce<E>) {                                                            \
        BY_CHANNELS(E, (sum_rows<2, Wide<E>::N, ReduceTerms<GATED, Wide<E>::N, E>>(a)),                             \
                    (sum_rows<2, 1, ReduceTerms<GATED, 1, E>>(a)))                                                  \
    }                                                                                                                \
    KERNEL_BY(3, batch_norm_backward_##suffix, Backward<E>) {                                                        \
        BY_CHANNELS(E, (for_rows<Wide<E>::N, BackwardEach<GATED, Wide<E>::N, E>>(a)),                                \
                    (for_rows<1, BackwardEach<GATED, 1, E>>(a)))                                                     \
    }

BATCH_NORM(float, f32)
BATCH_NORM(bf16, bf16)
BATCH_NORM(f16, f16)

struct RunningShare {
    const float *mean;      // [channels]
    const float *variance;  // [channels]
    Running running;
    uint32_t channels;
};

KERNEL(running_share, RunningShare) {
    for (uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x; channel < a.channels; channel += gridDim.x * blockDim.x) {
        a.running.take(channel, a.channels, a.mean[channel], a.variance[channel]);
    }
}
