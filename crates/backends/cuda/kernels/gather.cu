// Rows that lie apart, side by side, and back. A row of blocks takes one row of values.
#include "kernel.h"

const uint32_t ROWS = 16;

struct GatherRows {
    const float *from[ROWS];  // [elements] each
    float *to;                // [rows, elements]
    uint64_t elements;
};

KERNEL(gather_rows, GatherRows) {
    const float *from = a.from[blockIdx.y];
    float *to = a.to + blockIdx.y * a.elements;
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < a.elements; at += stride) to[at] = from[at];
}

struct ScatterRows {
    const float *from;  // [rows, elements]
    float *to[ROWS];    // [elements] each; the rows take turns
    uint64_t rows;
    uint64_t elements;
};

KERNEL(scatter_rows, ScatterRows) {
    const float *from = a.from + blockIdx.y % a.rows * a.elements;
    float *to = a.to[blockIdx.y];
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < a.elements; at += stride) to[at] = from[at];
}
