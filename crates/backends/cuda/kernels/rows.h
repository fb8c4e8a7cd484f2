// Passes over maps as rows of channels, and reductions over rows. A thread keeps its channels, so that it reads what belongs
// to them once.
#pragma once

#include "element.h"

// N values of a table with one for each channel.
template <int N> __device__ __forceinline__ void load_channels(const float *from, uint32_t channel, float (&values)[N]) {
    const int PART = N < 4 ? N : 4;
#pragma unroll
    for (int i = 0; i < N; i += PART) {
        Packet<float, PART> packet = fetch<PART>(from, channel + i);
#pragma unroll
        for (int j = 0; j < PART; j++) values[i + j] = packet.at[j];
    }
}

// Runs the first with 16 bytes for each thread where the channels allow it, else the second with one channel.
#define BY_CHANNELS(E, wide, narrow)    \
    if (a.channels % Wide<E>::N == 0) { \
        wide;                           \
    } else {                            \
        narrow;                         \
    }

// Makes an `Each` of a thread's channels, and calls `read(index)` and then `write(index, values)` of it for all of the thread's
// rows. There are at least as many threads as packets in a row. Two rows are read before the first is written, to cover more
// of memory's latency. Results may lie over operands.
template <int N, class Each, class Arguments> __device__ __forceinline__ void for_rows(const Arguments &a) {
    uint32_t packets = a.channels / N;
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t step = gridDim.x * blockDim.x / packets;
    uint64_t row = thread / packets;
    uint32_t channel = thread % packets * N;
    // The last threads would have less than a row together.
    if (row >= step || row >= a.rows) return;
    const Each each(a, channel);
    for (; row < a.rows; row += 2 * step) {
        uint64_t first = row * a.channels + channel;
        uint64_t second = first + step * a.channels;
        bool has_second = row + step < a.rows;
        auto values = each.read(first);
        auto next = each.read(has_second ? second : first);
        each.write(first, values);
        if (has_second) each.write(second, next);
    }
}

// How a reduction is divided: see `Reduction` in rows.rs. A block has a chunk of the rows and some packets of each. Of its
// threads each has one packet, in every `lanes`th row of the chunk. A chunk's result is a row of a table.
struct Share {
    uint64_t first, end;
    uint32_t lane, lanes;
    uint32_t channel;
    // Some threads have no row or no channel.
    bool works;
};

template <int N, class Arguments> __device__ __forceinline__ Share share(const Arguments &a) {
    Share s;
    s.lanes = blockDim.x / a.packets;
    s.lane = threadIdx.x / a.packets;
    s.channel = (blockIdx.x * a.packets + threadIdx.x % a.packets) * N;
    uint64_t start = blockIdx.y * (uint64_t)a.chunk;
    s.first = start + s.lane;
    s.end = min(start + a.chunk, a.rows);
    s.works = s.lane < s.lanes && s.channel < a.channels;
    return s;
}

// Combines the values of threads `distance`, 2 * `distance`, ... apart into those of the first `distance` threads, in a fixed
// tree.
template <class T> __device__ __forceinline__ void combine_lanes(T (&values)[256], uint32_t lanes, uint32_t distance) {
    uint32_t lane = threadIdx.x / distance;
    for (uint32_t span = 1; span < lanes; span *= 2) {
        __syncthreads();
        if (lane % (2 * span) == 0 && lane + span < lanes)
            values[threadIdx.x].combine(values[threadIdx.x + span * distance]);
    }
}

// A block that combines the chunks' results has this many channels, and as many threads for each as fit.
const uint32_t COLUMNS = 8;

// K sums for each of N channels.
template <int K, int N> struct Sums {
    float of[K][N];

    __device__ __forceinline__ void combine(const Sums &other) {
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int i = 0; i < N; i++) of[k][i] += other.of[k][i];
    }
};

// The sums over a block's chunk of what `terms.add(index, sums)` adds for each row, into the table
// `partial [chunks, K, channels]`. Without a table the chunk is all there is, and `results.take(channel, sums)` ends it.
template <int K, int N, class Terms, class Arguments> __device__ __forceinline__ void sum_chunk(const Arguments &a) {
    using All = Sums<K, N>[256];
    SHARED(All, all);
    Share s = share<N>(a);
    Sums<K, N> sums = {};
    if (s.works) {
        const Terms terms(a, s.channel);
#pragma unroll 4
        for (uint64_t row = s.first; row < s.end; row += s.lanes) terms.add(row * a.channels + s.channel, sums);
    }
    all[threadIdx.x] = sums;
    combine_lanes(all, s.lanes, a.packets);
    if (!s.works || s.lane != 0) return;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float of[K];
#pragma unroll
        for (int k = 0; k < K; k++) of[k] = all[threadIdx.x].of[k][i];
        if (a.partial == nullptr) {
            a.results.take(s.channel + i, of);
        } else {
#pragma unroll
            for (int k = 0; k < K; k++) a.partial[((uint64_t)blockIdx.y * K + k) * a.channels + s.channel + i] = of[k];
        }
    }
}

// What combines the results of all chunks.
template <class R> struct Combine {
    const float *partial;  // [chunks, K, channels]
    R results;
    uint64_t rows;
    uint32_t channels, chunks, chunk;
};

// The sums of one channel over all chunks, which `results.take` ends.
template <int K, class R> __device__ __forceinline__ void sum_chunks(const Combine<R> &a) {
    using All = Sums<K, 1>[256];
    SHARED(All, all);
    uint32_t channel = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
    uint32_t lanes = blockDim.x / COLUMNS;
    Sums<K, 1> sums = {};
    if (channel < a.channels) {
#pragma unroll 4
        for (uint32_t chunk = threadIdx.x / COLUMNS; chunk < a.chunks; chunk += lanes)
#pragma unroll
            for (int k = 0; k < K; k++) sums.of[k][0] += a.partial[((uint64_t)chunk * K + k) * a.channels + channel];
    }
    all[threadIdx.x] = sums;
    combine_lanes(all, lanes, COLUMNS);
    if (threadIdx.x >= COLUMNS || channel >= a.channels) return;
    float of[K];
#pragma unroll
    for (int k = 0; k < K; k++) of[k] = all[threadIdx.x].of[k][0];
    a.results.take(channel, of);
}
