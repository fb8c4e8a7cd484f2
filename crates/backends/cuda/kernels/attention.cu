// Attention in several heads, and its gradient. A block has a tile of 16 queries, or of 16 keys, of a head of a sample, and meets
// those of the other kind tile by tile, in order. Thread (row, lane) computes one score of each pair of tiles, and every 16th
// channel of a row of the result from `lane` on. No scores leave the block.
#include "element.h"

const uint32_t TILE = 16;
// The most channels of a head.
const uint32_t HEAD = 128;

// The further column puts the rows' elements into different banks.
using Rows = float[TILE][HEAD + 1];
using Scores = float[TILE][TILE + 1];

struct Size {
    uint64_t tiles;  // of all heads and samples
    uint32_t tokens, heads, head;
    float scale;  // 1 / sqrt(head)
};

// Where the head of a tile is.
struct Tile {
    uint64_t head;   // of all samples
    uint64_t token;  // the sample's first
    uint32_t channel;
    uint32_t first;  // token of the tile

    __device__ __forceinline__ Tile(const Size &size, uint64_t number) {
        const uint32_t of_head = (size.tokens + TILE - 1) / TILE;
        head = number / of_head;
        token = head / size.heads * size.tokens;
        channel = (uint32_t)(head % size.heads) * size.head;
        first = (uint32_t)(number % of_head) * TILE;
    }

    // The first channel of a token, of `parts` parts.
    __device__ __forceinline__ uint64_t at(const Size &size, uint32_t index, uint32_t part, uint32_t parts) const {
        const uint64_t channels = (uint64_t)size.heads * size.head;
        return ((token + index) * parts + part) * channels + channel;
    }
};

// Copies the rows of a tile that begins at token `first`, with zeros for those after the last token.
template <class E>
__device__ __forceinline__ void read(Rows &to, const E *from, const Size &size, const Tile &tile, uint32_t first,
                                     uint32_t part, uint32_t parts, float factor) {
    for (uint32_t at = threadIdx.x; at < TILE * size.head; at += blockDim.x) {
        const uint32_t row = at / size.head, channel = at % size.head, token = first + row;
        const bool is_there = token < size.tokens;
        to[row][channel] = is_there ? to_float(from[tile.at(size, token, part, parts) + channel]) * factor : 0.0f;
    }
}

__device__ __forceinline__ float dot(const float (&a)[HEAD + 1], const float (&b)[HEAD + 1], uint32_t head) {
    float sum = 0.0f;
    for (uint32_t at = 0; at < head; at++) sum = fmaf(a[at], b[at], sum);
    return sum;
}

// The channels of a row that a thread has: every 16th from its lane on.
struct Row {
    float of[HEAD / TILE];

    __device__ __forceinline__ Row() {
#pragma unroll
        for (uint32_t i = 0; i < HEAD / TILE; i++) of[i] = 0.0f;
    }

    __device__ __forceinline__ void scale(float factor) {
#pragma unroll
        for (uint32_t i = 0; i < HEAD / TILE; i++) of[i] *= factor;
    }

    // Adds factors times the rows of a tile.
    __device__ __forceinline__ void add(const float (&factors)[TILE + 1], const Rows &rows, uint32_t head, uint32_t lane) {
        for (uint32_t row = 0; row < TILE; row++) {
#pragma unroll
            for (uint32_t i = 0; i < HEAD / TILE; i++) {
                const uint32_t channel = lane + i * TILE;
                if (channel < head) of[i] = fmaf(factors[row], rows[row][channel], of[i]);
            }
        }
    }

    template <class E> __device__ __forceinline__ void write(E *to, uint32_t head, uint32_t lane) const {
#pragma unroll
        for (uint32_t i = 0; i < HEAD / TILE; i++) {
            const uint32_t channel = lane + i * TILE;
            if (channel < head) from_float(of[i], to[channel]);
        }
    }
};

template <class E> struct Forward {
    const E *qkv;        // [samples, tokens, 3, heads, head]
    E *y;                // [samples, tokens, heads, head]
    float *log_sum_exp;  // [samples, heads, tokens]
    Size size;
};

template <class E> __device__ __forceinline__ void forward(const Forward<E> &a) {
    SHARED(Rows, queries);
    SHARED(Rows, keys);
    SHARED(Rows, values);
    SHARED(Scores, scores);
    const Size &size = a.size;
    const uint32_t row = threadIdx.x / TILE, lane = threadIdx.x % TILE;
    const float nothing = __uint_as_float(0xff800000u);
    for (uint64_t number = blockIdx.x; number < size.tiles; number += gridDim.x) {
        const Tile tile(size, number);
        read(queries, a.qkv, size, tile, tile.first, 0, 3, size.scale);
        Row y;
        float largest = nothing, sum = 0.0f;
        for (uint32_t first = 0; first < size.tokens; first += TILE) {
            // The tile before is no longer read.
            __syncthreads();
            read(keys, a.qkv, size, tile, first, 1, 3, 1.0f);
            read(values, a.qkv, size, tile, first, 2, 3, 1.0f);
            __syncthreads();
            const float score = first + lane < size.tokens ? dot(queries[row], keys[lane], size.head) : nothing;
            scores[row][lane] = score;
            __syncthreads();
            // What has been added so far is relative to the largest score so far.
            float larger = largest;
            for (uint32_t at = 0; at < TILE; at++) larger = fmaxf(larger, scores[row][at]);
            const float factor = expf(largest - larger);
            largest = larger;
            __syncthreads();
            scores[row][lane] = expf(score - largest);
            __syncthreads();
            sum *= factor;
            for (uint32_t at = 0; at < TILE; at++) sum += scores[row][at];
            y.scale(factor);
            y.add(scores[row], values, size.head, lane);
        }
        const uint32_t token = tile.first + row;
        if (token < size.tokens) {
            y.scale(1.0f / sum);
            y.write(a.y + tile.at(size, token, 0, 1), size.head, lane);
            if (lane == 0) a.log_sum_exp[tile.head * size.tokens + token] = largest + logf(sum);
        }
        // The next tile's queries overwrite these.
        __syncthreads();
    }
}

KERNEL(attention_f32, Forward<float>) { forward(a); }
KERNEL(attention_bf16, Forward<bf16>) { forward(a); }
KERNEL(attention_f16, Forward<f16>) { forward(a); }

template <class E> struct BackwardQueries {
    const E *dy;               // [samples, tokens, heads, head]
    const E *qkv;              // [samples, tokens, 3, heads, head]
    const E *y;                // [samples, tokens, heads, head]
    const float *log_sum_exp;  // [samples, heads, tokens]
    E *dqkv;                   // [samples, tokens, 3, heads, head]: queries, and 0 where keys and values will be
    float *means;              // [samples, heads, tokens]: sums of dy * y over the head
    Size size;
};

template <class E> __device__ __forceinline__ void backward_queries(const BackwardQueries<E> &a) {
    SHARED(Rows, queries);
    SHARED(Rows, gradients);
    SHARED(Rows, keys);
    SHARED(Rows, values);
    SHARED(Scores, products);
    const Size &size = a.size;
    const uint32_t row = threadIdx.x / TILE, lane = threadIdx.x % TILE;
    for (uint64_t number = blockIdx.x; number < size.tiles; number += gridDim.x) {
        const Tile tile(size, number);
        read(queries, a.qkv, size, tile, tile.first, 0, 3, size.scale);
        read(gradients, a.dy, size, tile, tile.first, 0, 1, 1.0f);
        // Results are needed once, where values come later.
        read(values, a.y, size, tile, tile.first, 0, 1, 1.0f);
        __syncthreads();
        const uint32_t token = tile.first + row;
        const float mean = dot(gradients[row], values[row], size.head);
        float log_sum_exp = 0.0f;
        if (token < size.tokens) {
            const uint64_t at = tile.head * size.tokens + token;
            log_sum_exp = a.log_sum_exp[at];
            if (lane == 0) a.means[at] = mean;
        }
        Row dq;
        for (uint32_t first = 0; first < size.tokens; first += TILE) {
            __syncthreads();
            read(keys, a.qkv, size, tile, first, 1, 3, 1.0f);
            read(values, a.qkv, size, tile, first, 2, 3, 1.0f);
            __syncthreads();
            const float probability = expf(dot(queries[row], keys[lane], size.head) - log_sum_exp);
            const float product = probability * (dot(gradients[row], values[lane], size.head) - mean);
            products[row][lane] = first + lane < size.tokens ? product : 0.0f;
            __syncthreads();
            dq.add(products[row], keys, size.head, lane);
        }
        if (token < size.tokens) {
            dq.scale(size.scale);
            dq.write(a.dqkv + tile.at(size, token, 0, 3), size.head, lane);
            Row().write(a.dqkv + tile.at(size, token, 1, 3), size.head, lane);
            Row().write(a.dqkv + tile.at(size, token, 2, 3), size.head, lane);
        }
        __syncthreads();
    }
}

KERNEL(attention_backward_queries_f32, BackwardQueries<float>) { backward_queries(a); }
KERNEL(attention_backward_queries_bf16, BackwardQueries<bf16>) { backward_queries(a); }
KERNEL(attention_backward_queries_f16, BackwardQueries<f16>) { backward_queries(a); }

template <class E> struct BackwardKeys {
    const E *dy;               // [samples, tokens, heads, head]
    const E *qkv;              // [samples, tokens, 3, heads, head]
    const float *log_sum_exp;  // [samples, heads, tokens]
    const float *means;        // [samples, heads, tokens]
    E *dqkv;                   // [samples, tokens, 3, heads, head]: keys and values
    Size size;
};

template <class E> __device__ __forceinline__ void backward_keys(const BackwardKeys<E> &a) {
    SHARED(Rows, keys);
    SHARED(Rows, values);
    SHARED(Rows, queries);
    SHARED(Rows, gradients);
    SHARED(Scores, probabilities);
    SHARED(Scores, products);
    const Size &size = a.size;
    const uint32_t row = threadIdx.x / TILE, lane = threadIdx.x % TILE;
    for (uint64_t number = blockIdx.x; number < size.tiles; number += gridDim.x) {
        const Tile tile(size, number);
        read(keys, a.qkv, size, tile, tile.first, 1, 3, 1.0f);
        read(values, a.qkv, size, tile, tile.first, 2, 3, 1.0f);
        Row dk, dv;
        for (uint32_t first = 0; first < size.tokens; first += TILE) {
            __syncthreads();
            read(queries, a.qkv, size, tile, first, 0, 3, size.scale);
            read(gradients, a.dy, size, tile, first, 0, 1, 1.0f);
            __syncthreads();
            float probability = 0.0f, product = 0.0f;
            if (first + lane < size.tokens) {
                const uint64_t at = tile.head * size.tokens + first + lane;
                probability = expf(dot(queries[lane], keys[row], size.head) - a.log_sum_exp[at]);
                product = probability * (dot(gradients[lane], values[row], size.head) - a.means[at]);
            }
            probabilities[row][lane] = probability;
            products[row][lane] = product;
            __syncthreads();
            dk.add(products[row], queries, size.head, lane);
            dv.add(probabilities[row], gradients, size.head, lane);
        }
        const uint32_t token = tile.first + row;
        if (token < size.tokens) {
            dk.write(a.dqkv + tile.at(size, token, 1, 3), size.head, lane);
            dv.write(a.dqkv + tile.at(size, token, 2, 3), size.head, lane);
        }
        __syncthreads();
    }
}

KERNEL(attention_backward_keys_f32, BackwardKeys<float>) { backward_keys(a); }
KERNEL(attention_backward_keys_bf16, BackwardKeys<bf16>) { backward_keys(a); }
KERNEL(attention_backward_keys_f16, BackwardKeys<f16>) { backward_keys(a); }
