// Changes of order: channels last, as maps have them, and channels first, as PyTorch flattens them. Changes of the number of channels.
#include "element.h"

// A matrix for each sample, and the same transposed.
template <class From, class To> struct Transpose {
    const From *from;  // [samples, rows, columns]
    To *to;            // [samples, columns, rows]
    uint32_t samples, rows, columns;
};

const uint32_t TILE = 32;

// A block moves tiles through its memory, so that neighbouring threads have neighbouring elements on both sides.
template <class From, class To> __device__ __forceinline__ void transpose(const Transpose<From, To> &a) {
    // The further column puts a column's elements into different banks.
    SHARED(float[TILE][TILE + 1], tile);
    uint32_t across = (a.columns + TILE - 1) / TILE, down = (a.rows + TILE - 1) / TILE;
    uint32_t x = threadIdx.x % TILE, y = threadIdx.x / TILE, step = blockDim.x / TILE;
    uint64_t tiles = (uint64_t)a.samples * down * across;
    for (uint64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        uint32_t left = (uint32_t)(number % across) * TILE, top = (uint32_t)(number / across % down) * TILE;
        uint64_t start = number / across / down * a.rows * a.columns;
        uint32_t width = min(TILE, a.columns - left), height = min(TILE, a.rows - top);
        if (x < width) {
#pragma unroll 4
            for (uint32_t i = y; i < height; i += step)
                tile[i][x] = to_float(a.from[start + (uint64_t)(top + i) * a.columns + left + x]);
        }
        __syncthreads();
        if (x < height) {
#pragma unroll 4
            for (uint32_t i = y; i < width; i += step)
                from_float(tile[x][i], a.to[start + (uint64_t)(left + i) * a.rows + top + x]);
        }
        // The next tile overwrites this one.
        __syncthreads();
    }
}

using F32ToF32 = Transpose<float, float>;
using F32ToBf16 = Transpose<float, bf16>;
using F32ToF16 = Transpose<float, f16>;
using Bf16ToF32 = Transpose<bf16, float>;
using Bf16ToBf16 = Transpose<bf16, bf16>;
using F16ToF32 = Transpose<f16, float>;
using F16ToF16 = Transpose<f16, f16>;

KERNEL(transpose_f32_to_f32, F32ToF32) { transpose(a); }
KERNEL(transpose_f32_to_bf16, F32ToBf16) { transpose(a); }
KERNEL(transpose_f32_to_f16, F32ToF16) { transpose(a); }
KERNEL(transpose_bf16_to_f32, Bf16ToF32) { transpose(a); }
KERNEL(transpose_bf16_to_bf16, Bf16ToBf16) { transpose(a); }
KERNEL(transpose_f16_to_f32, F16ToF32) { transpose(a); }
KERNEL(transpose_f16_to_f16, F16ToF16) { transpose(a); }

// A matrix with more columns, of zeros, or without its last ones.
template <class From, class To> struct Columns {
    const From *from;  // [rows, read]
    To *to;            // [rows, written]
    uint64_t elements;  // of `to`
    uint32_t read, written;
};

template <class From, class To> __device__ __forceinline__ void columns(const Columns<From, To> &a) {
    uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t index = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; index < a.elements; index += threads) {
        uint32_t column = (uint32_t)(index % a.written);
        from_float(column < a.read ? to_float(a.from[index / a.written * a.read + column]) : 0.0f, a.to[index]);
    }
}

using ColumnsF32ToF32 = Columns<float, float>;
using ColumnsF32ToBf16 = Columns<float, bf16>;
using ColumnsF32ToF16 = Columns<float, f16>;
using ColumnsBf16ToF32 = Columns<bf16, float>;
using ColumnsF16ToF32 = Columns<f16, float>;

KERNEL(columns_f32_to_f32, ColumnsF32ToF32) { columns(a); }
KERNEL(columns_f32_to_bf16, ColumnsF32ToBf16) { columns(a); }
KERNEL(columns_f32_to_f16, ColumnsF32ToF16) { columns(a); }
KERNEL(columns_bf16_to_f32, ColumnsBf16ToF32) { columns(a); }
KERNEL(columns_f16_to_f32, ColumnsF16ToF32) { columns(a); }
