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

// How a reduction is divided: see `Reduction` in rows.rs. A block has a chunk of the rows and some packets of each, which are a
// slab. Of its threads each has one packet, in every `lanes`th row of the chunk. A chunk's result is a row of a table, and the
// last block of a slab combines those of all chunks.
struct Share {
    uint64_t first, end;
    uint32_t lane, lanes;
    uint32_t channel;
    // The channels of the slab.
    uint32_t slab, slab_end;
    // Some threads have no row or no channel.
    bool works;
};

template <int N, class Arguments> __device__ __forceinline__ Share share(const Arguments &a) {
    Share s;
    s.lanes = blockDim.x / a.packets;
    s.lane = threadIdx.x / a.packets;
    s.slab = blockIdx.x * a.packets * N;
    s.slab_end = min(s.slab + a.packets * N, a.channels);
    s.channel = s.slab + threadIdx.x % a.packets * N;
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

// Of a block that combines the chunks' results this many threads are side by side, and as many for each of them as fit.
const uint32_t COLUMNS = 8;

// Channels of each, of N that a thread had before: a float takes more bytes than an element.
template <int N> const int COLUMN = N < 4 ? N : 4;

// Whether this block is the last one of its slab, so that what the others have written is there to read. `counters` has a zero
// for each slab, and only this function writes there. A count returns to zero with the last block. A kernel that has begun ends, also in a
// step that the host gives up, or the context ends with its memory. So each kernel finds zeros.
__device__ __forceinline__ bool is_last_of_slab(uint32_t *counters, bool &is_last) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicInc(counters + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
        __threadfence();
    }
    __syncthreads();
    return is_last;
}

// Floats that other blocks have written. The cache of an SM does not follow those of others.
template <int N> __device__ __forceinline__ void load_fresh(const float *from, uint64_t index, float (&values)[N]) {
    if constexpr (N == 4) {
        float4 four = __ldcg(reinterpret_cast<const float4 *>(from + index));
        values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
    } else {
        static_assert(N == 1, "a packet of floats");
        values[0] = __ldcg(from + index);
    }
}

// Combines the results of all chunks of a slab: `add(chunk, channel, value)` takes a chunk's to those of earlier ones, and
// `take(channel, value)` ends N channels. All in a fixed order. `values` is memory of the block for its threads.
template <int N, class T, class Add, class Take>
__device__ __forceinline__ void combine_chunks(T (&values)[256], const Share &s, Add add, Take take) {
    uint32_t lanes = blockDim.x / COLUMNS;
    for (uint32_t first = s.slab; first < s.slab_end; first += COLUMNS * N) {
        uint32_t channel = first + threadIdx.x % COLUMNS * N;
        T value = {};
        if (channel < s.slab_end) {
#pragma unroll 4
            for (uint32_t chunk = threadIdx.x / COLUMNS; chunk < gridDim.y; chunk += lanes) add(chunk, channel, value);
        }
        // Some threads may still read what was there.
        __syncthreads();
        values[threadIdx.x] = value;
        combine_lanes(values, lanes, COLUMNS);
        if (threadIdx.x < COLUMNS && channel < s.slab_end) take(channel, values[threadIdx.x]);
    }
}

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

// The sums over all rows of what `terms.add(index, sums)` adds for each, by way of the table `partial [chunks, K, channels]`.
// Without a table a single chunk has all rows. `results.take(channel, sums)` ends it.
template <int K, int N, class Terms, class Arguments> __device__ __forceinline__ void sum_rows(const Arguments &a) {
    using All = Sums<K, N>[256];
    SHARED(All, all);
    SHARED(bool, is_last);
    Share s = share<N>(a);
    Sums<K, N> sums = {};
    if (s.works) {
        const Terms terms(a, s.channel);
#pragma unroll 4
        for (uint64_t row = s.first; row < s.end; row += s.lanes) terms.add(row * a.channels + s.channel, sums);
    }
    all[threadIdx.x] = sums;
    combine_lanes(all, s.lanes, a.packets);
    if (s.works && s.lane == 0) {
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
    if (a.partial == nullptr || !is_last_of_slab(a.counters, is_last)) return;
    const int V = COLUMN<N>;
    auto add = [&](uint32_t chunk, uint32_t channel, Sums<K, V> &sums) {
        Sums<K, V> of_chunk;
#pragma unroll
        for (int k = 0; k < K; k++) {
            load_fresh(a.partial, ((uint64_t)chunk * K + k) * a.channels + channel, of_chunk.of[k]);
        }
        sums.combine(of_chunk);
    };
    auto take = [&](uint32_t channel, const Sums<K, V> &sums) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            float of[K];
#pragma unroll
            for (int k = 0; k < K; k++) of[k] = sums.of[k][i];
            a.results.take(channel + i, of);
        }
    };
    combine_chunks<V>(reinterpret_cast<Sums<K, V>(&)[256]>(all), s, add, take);
}
