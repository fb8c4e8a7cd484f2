// What all kernels share: how one is declared, the element types of maps, and the values of a step.
//
// A kernel takes one struct. KERNEL(name, Arguments) { ... } declares it: for a GPU as a __global__ function, on the host as
// a function that the emulation calls for each thread. The body names the struct `a`. SHARED(float[32][33], tile) declares
// memory of the block; it stands before any branch.
#pragma once

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
template <class T> struct Same {
    using Type = T;
};
#define SHARED(T, name) __shared__ typename Same<T>::Type name
// Code for compute capability 10.0 and later takes more registers: for as many blocks as elsewhere ptxas would spill.
#if __CUDA_ARCH__ >= 1000
#define BLOCKS(blocks) ((blocks) > 2 ? (blocks)-1 : (blocks))
#else
#define BLOCKS(blocks) (blocks)
#endif
// With registers for at least so many blocks on an SM at a time.
#define KERNEL_BY(blocks, name, Arguments)                                  \
    __device__ __forceinline__ void name##_body(const Arguments &a);        \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS(blocks)) name( \
        const __grid_constant__ Arguments a) {                              \
        follow();                                                           \
        name##_body(a);                                                     \
    }                                                                       \
    __device__ __forceinline__ void name##_body(const Arguments &a)
// Two blocks at a time are enough to keep memory busy. Asked for more, ptxas would spill in some.
#define KERNEL(name, Arguments) KERNEL_BY(2, name, Arguments)

// Lets the next kernel of the stream come while this one still runs, and waits until the one before has ended and its results are
// there. Nothing comes before it, so kernels that overlap never meet in memory. Programmatic dependent launch: `module.rs` asks
// for it where the GPU has it.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}
// A GPU checks each access itself.
#define CHECK_ALIGNED(address, bytes)
#else
#include "host.h"
#define KERNEL_BY(blocks, name, Arguments) KERNEL(name, Arguments)
#endif

// The numbers of a step, which the program writes before each step.
struct StepValues {
    uint64_t epoch;
    uint64_t optimizer_step;  // from 1
    float learning_rate;
    float stop;  // 1 if this rank was asked to stop
    float save;  // 1 if this rank was asked for a checkpoint
    float lookahead;  // the alpha of a step in which weights and slow weights meet, or below 0
};

// The first loss that was not finite since the program cleared this. While `shard` is not 0, nothing changes state.
struct Failure {
    uint32_t shard;  // its number plus 1, or 0
    float loss;
};
