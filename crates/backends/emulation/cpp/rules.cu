// Kernels that keep the rules, and kernels that break one, for the tests of the emulation.
#include "kernel.h"

struct Output {
    unsigned *y;
};

// Global number of the thread.
KERNEL(number_threads, Output) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    a.y[block * blockDim.x + threadIdx.x] = block * blockDim.x + threadIdx.x;
}

// The neighbour's number, through shared memory, twice around.
KERNEL(pass_on, Output) {
    SHARED(unsigned[256], numbers);
    unsigned number = threadIdx.x;
    for (int round = 0; round < 2; round++) {
        numbers[threadIdx.x] = number;
        __syncthreads();
        number = numbers[(threadIdx.x + 1) % blockDim.x];
        __syncthreads();
    }
    a.y[blockIdx.x * blockDim.x + threadIdx.x] = number;
}

// The sum of the warp's numbers at its first lane, of the lanes up to each one's partner elsewhere.
KERNEL(add_lanes, Output) {
    unsigned sum = threadIdx.x;
    for (unsigned delta = 16; delta > 0; delta /= 2) sum += __shfl_down_sync(0xffffffffu, sum, delta);
    sum = __shfl_sync(0xffffffffu, sum, 0);
    a.y[threadIdx.x] = sum + __shfl_xor_sync(0xffffffffu, threadIdx.x, 1u);
}

// Threads that have ended are not waited for.
KERNEL(some_leave, Output) {
    if (threadIdx.x % 2) return;
    __syncthreads();
    a.y[threadIdx.x] = 1;
}

KERNEL(read_before_write, Output) {
    SHARED(unsigned[256], numbers);
    a.y[blockIdx.x * blockDim.x + threadIdx.x] = numbers[threadIdx.x];
    numbers[threadIdx.x] = 7;
}

// The neighbour may not have written yet.
KERNEL(do_not_wait, Output) {
    SHARED(unsigned[256], numbers);
    numbers[threadIdx.x] = threadIdx.x;
    a.y[threadIdx.x] = numbers[threadIdx.x ^ 1];
}

KERNEL(two_barriers, Output) {
    if (threadIdx.x < 3)
        __syncthreads();
    else
        __syncthreads();
    a.y[threadIdx.x] = 1;
}

KERNEL(lane_is_missing, Output) {
    if (threadIdx.x == 40) return;
    a.y[threadIdx.x] = __shfl_down_sync(0xffffffffu, threadIdx.x, 1);
}

KERNEL(lane_waits_elsewhere, Output) {
    if (threadIdx.x == 5) __syncthreads();
    a.y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, threadIdx.x, 1u);
}

KERNEL(shares_too_much, Output) {
    SHARED(unsigned[12289], numbers);
    numbers[threadIdx.x] = 0;
    a.y[threadIdx.x] = 1;
}
