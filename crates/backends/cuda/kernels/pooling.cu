// Max, average and adaptive average pooling, and their gradients. A thread has some channels of a pixel of the result. A
// gradient gathers: an input pixel looks at the windows that cover it, so that no two threads add to one place.
#include "rows.h"

// A sliding window over maps. Each pair is [vertical, horizontal]; the padding is that above and to the left.
struct Window {
    uint32_t input[2], output[2];
    uint32_t kernel[2], stride[2], padding[2], dilation[2];
};

// A pixel of the maps of all samples.
struct Pixel {
    uint32_t sample, row, column;

    __device__ __forceinline__ Pixel(uint32_t pixel, const uint32_t (&size)[2])
        : sample(pixel / size[1] / size[0]), row(pixel / size[1] % size[0]), column(pixel % size[1]) {}
};

// The index of a pixel among those of all samples.
__device__ __forceinline__ uint32_t pixel_at(uint32_t sample, uint32_t row, uint32_t column, const uint32_t (&size)[2]) {
    return (sample * size[0] + row) * size[1] + column;
}

// Calls `each(pixel, channel)` for all of the thread's pixels. There are at least as many threads as packets in a pixel.
template <int N, class Arguments, class Each>
__device__ __forceinline__ void for_pixels(const Arguments &a, const Each &each) {
    uint32_t packets = a.channels / N;
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t step = gridDim.x * blockDim.x / packets;
    uint64_t pixel = thread / packets;
    // The last threads would have less than a pixel together.
    if (pixel >= step) return;
    for (; pixel < a.pixels; pixel += step) each((uint32_t)pixel, thread % packets * N);
}

// Calls `each(input pixel, tap)` for every tap of an output pixel that lies on the input, row by row.
template <class Each> __device__ __forceinline__ void for_taps(const Window &w, uint32_t pixel, const Each &each) {
    const Pixel out(pixel, w.output);
    // Above and left of the input these wrap, and are as large as no input.
    uint32_t top = out.row * w.stride[0] - w.padding[0];
    uint32_t left = out.column * w.stride[1] - w.padding[1];
    for (uint32_t i = 0; i < w.kernel[0]; i++) {
        uint32_t row = top + i * w.dilation[0];
        if (row >= w.input[0]) continue;
        for (uint32_t j = 0; j < w.kernel[1]; j++) {
            uint32_t column = left + j * w.dilation[1];
            if (column < w.input[1]) each(pixel_at(out.sample, row, column, w.input), i * w.kernel[1] + j);
        }
    }
}

// Along one axis, the outputs `first` up to and without `end`.
struct Outputs {
    uint32_t first, end;
};

// The windows that cover a place of the padded input. With dilation some of them have no tap there.
__device__ __forceinline__ Outputs windows_over(const Window &w, int axis, uint32_t place) {
    uint32_t span = (w.kernel[axis] - 1) * w.dilation[axis], stride = w.stride[axis];
    uint32_t first = place > span ? (place - span + stride - 1) / stride : 0;
    return {first, min(place / stride + 1, w.output[axis])};
}

// Calls `each(output pixel, tap)` for every window that has a tap on an input pixel, in the order of the outputs.
template <class Each> __device__ __forceinline__ void for_windows(const Window &w, uint32_t pixel, const Each &each) {
    const Pixel in(pixel, w.input);
    uint32_t down = in.row + w.padding[0], right = in.column + w.padding[1];
    Outputs rows = windows_over(w, 0, down), columns = windows_over(w, 1, right);
    for (uint32_t row = rows.first; row < rows.end; row++) {
        uint32_t below = down - row * w.stride[0];
        uint32_t i = below / w.dilation[0];
        if (i * w.dilation[0] != below) continue;
        for (uint32_t column = columns.first; column < columns.end; column++) {
            uint32_t beside = right - column * w.stride[1];
            uint32_t j = beside / w.dilation[1];
            if (j * w.dilation[1] == beside) each(pixel_at(in.sample, row, column, w.output), i * w.kernel[1] + j);
        }
    }
}

// Adds N elements from `index` on, times `factor`.
template <int N, class E>
__device__ __forceinline__ void add_scaled(const E *from, uint64_t index, float factor, float (&sums)[N]) {
    float values[N];
    load(from, index, values);
#pragma unroll
    for (int i = 0; i < N; i++) sums[i] += values[i] * factor;
}

template <class E> struct MaxPool {
    const E *x;         // [samples, input, channels]
    E *y;               // [samples, output, channels]
    uint8_t *position;  // as y
    uint32_t pixels;    // of y
    uint32_t channels;
    Window window;
};

template <int N, class E> __device__ __forceinline__ void max_pool(const MaxPool<E> &a) {
    for_pixels<N>(a, [&](uint32_t pixel, uint32_t channel) {
        float largest[N];  // minus infinity, if all taps are on padding
        Packet<uint8_t, N> position = {};
#pragma unroll
        for (int i = 0; i < N; i++) largest[i] = __uint_as_float(0xff800000u);
        // The first element counts even if it is minus infinity, so that no position points at padding.
        bool started = false;
        for_taps(a.window, pixel, [&](uint32_t from, uint32_t tap) {
            float x[N];
            load(a.x, (uint64_t)from * a.channels + channel, x);
#pragma unroll
            for (int i = 0; i < N; i++) {
                // Nothing is larger than NaN, so that only another NaN replaces it.
                if (started && !(x[i] > largest[i]) && x[i] == x[i]) continue;
                largest[i] = x[i];
                position.at[i] = (uint8_t)tap;
            }
            started = true;
        });
        uint64_t index = (uint64_t)pixel * a.channels + channel;
        store(a.y, index, largest);
        CHECK_ALIGNED(a.position + index, N);
        *reinterpret_cast<Packet<uint8_t, N> *>(a.position + index) = position;
    });
}

KERNEL(max_pool_f32, MaxPool<float>) { BY_CHANNELS(float, max_pool<4>(a), max_pool<1>(a)) }
KERNEL(max_pool_bf16, MaxPool<bf16>) { BY_CHANNELS(bf16, max_pool<8>(a), max_pool<1>(a)) }
KERNEL(max_pool_f16, MaxPool<f16>) { BY_CHANNELS(f16, max_pool<8>(a), max_pool<1>(a)) }

template <class E> struct MaxPoolBackward {
    const E *dy;              // [samples, output, channels]
    const uint8_t *position;  // as dy
    E *dx;                    // [samples, input, channels]
    uint32_t pixels;          // of dx
    uint32_t channels;
    Window window;
};

template <int N, class E> __device__ __forceinline__ void max_pool_backward(const MaxPoolBackward<E> &a) {
    for_pixels<N>(a, [&](uint32_t pixel, uint32_t channel) {
        float dx[N] = {};
        for_windows(a.window, pixel, [&](uint32_t from, uint32_t tap) {
            uint64_t index = (uint64_t)from * a.channels + channel;
            float dy[N];
            load(a.dy, index, dy);
            Packet<uint8_t, N> position = fetch<N>(a.position, index);
#pragma unroll
            for (int i = 0; i < N; i++) dx[i] += position.at[i] == tap ? dy[i] : 0.0f;
        });
        store(a.dx, (uint64_t)pixel * a.channels + channel, dx);
    });
}

KERNEL(max_pool_backward_f32, MaxPoolBackward<float>) {
    BY_CHANNELS(float, max_pool_backward<4>(a), max_pool_backward<1>(a))
}
KERNEL(max_pool_backward_bf16, MaxPoolBackward<bf16>) {
    BY_CHANNELS(bf16, max_pool_backward<8>(a), max_pool_backward<1>(a))
}
KERNEL(max_pool_backward_f16, MaxPoolBackward<f16>) {
    BY_CHANNELS(f16, max_pool_backward<8>(a), max_pool_backward<1>(a))
}

// Forward from x to y, backward from dy to dx.
template <class E> struct AvgPool {
    const E *from;
    E *to;
    uint32_t pixels;  // of `to`
    uint32_t channels;
    Window window;
    float share;  // of an element in its window
};

template <int N, class E> __device__ __forceinline__ void avg_pool(const AvgPool<E> &a) {
    for_pixels<N>(a, [&](uint32_t pixel, uint32_t channel) {
        float y[N] = {};
        for_taps(a.window, pixel, [&](uint32_t from, uint32_t) {
            add_scaled(a.from, (uint64_t)from * a.channels + channel, a.share, y);
        });
        store(a.to, (uint64_t)pixel * a.channels + channel, y);
    });
}

KERNEL(avg_pool_f32, AvgPool<float>) { BY_CHANNELS(float, avg_pool<4>(a), avg_pool<1>(a)) }
KERNEL(avg_pool_bf16, AvgPool<bf16>) { BY_CHANNELS(bf16, avg_pool<8>(a), avg_pool<1>(a)) }
KERNEL(avg_pool_f16, AvgPool<f16>) { BY_CHANNELS(f16, avg_pool<8>(a), avg_pool<1>(a)) }

template <int N, class E> __device__ __forceinline__ void avg_pool_backward(const AvgPool<E> &a) {
    for_pixels<N>(a, [&](uint32_t pixel, uint32_t channel) {
        float dx[N] = {};
        for_windows(a.window, pixel, [&](uint32_t from, uint32_t) {
            add_scaled(a.from, (uint64_t)from * a.channels + channel, a.share, dx);
        });
        store(a.to, (uint64_t)pixel * a.channels + channel, dx);
    });
}

KERNEL(avg_pool_backward_f32, AvgPool<float>) { BY_CHANNELS(float, avg_pool_backward<4>(a), avg_pool_backward<1>(a)) }
KERNEL(avg_pool_backward_bf16, AvgPool<bf16>) { BY_CHANNELS(bf16, avg_pool_backward<8>(a), avg_pool_backward<1>(a)) }
KERNEL(avg_pool_backward_f16, AvgPool<f16>) { BY_CHANNELS(f16, avg_pool_backward<8>(a), avg_pool_backward<1>(a)) }

// The inputs that output `index` of `outputs` averages, along an axis of `size`: `first` up to and without `end`.
struct Region {
    uint32_t first, end;

    __device__ __forceinline__ Region(uint32_t index, uint32_t size, uint32_t outputs) : first(0), end(size) {
        // Global pooling does without divisions.
        if (outputs == 1) return;
        first = (uint32_t)((uint64_t)index * size / outputs);
        end = (uint32_t)((((uint64_t)index + 1) * size + outputs - 1) / outputs);
    }

    __device__ __forceinline__ uint32_t len() const { return end - first; }
};

// The outputs whose regions cover an input.
__device__ __forceinline__ Outputs regions_over(uint32_t place, uint32_t size, uint32_t outputs) {
    if (outputs == 1) return {0, 1};
    uint64_t first = (uint64_t)place * outputs;
    return {(uint32_t)(first / size), (uint32_t)((first + outputs - 1) / size) + 1};
}

template <class E> struct AdaptiveAvgPool {
    const E *x;       // [samples, input, channels]
    E *y;             // [samples, output, channels]
    uint32_t pixels;  // of y
    uint32_t channels;
    uint32_t input[2], output[2];
    uint32_t lanes;  // threads that share a region, a power of two
};

// The lanes of a region take turns with the pixels of each of its rows. Neighbouring threads have neighbouring channels.
template <int N, class E> __device__ __forceinline__ void adaptive_avg_pool(const AdaptiveAvgPool<E> &a) {
    using All = Sums<1, N>[256];
    SHARED(All, all);
    uint32_t packets = a.channels / N;
    uint64_t results = (uint64_t)a.pixels * packets;
    uint32_t together = blockDim.x / a.lanes, lane = threadIdx.x / together;
    for (uint64_t start = (uint64_t)blockIdx.x * together; start < results; start += (uint64_t)gridDim.x * together) {
        uint64_t result = start + threadIdx.x % together;
        uint32_t pixel = (uint32_t)(result / packets), channel = (uint32_t)(result % packets) * N;
        const Pixel out(pixel, a.output);
        const Region rows(out.row, a.input[0], a.output[0]), columns(out.column, a.input[1], a.output[1]);
        Sums<1, N> sums = {};
        if (result < results) {
            for (uint32_t row = rows.first; row < rows.end; row++) {
                uint64_t left = (uint64_t)pixel_at(out.sample, row, 0, a.input) * a.channels + channel;
#pragma unroll 4
                for (uint32_t column = columns.first + lane; column < columns.end; column += a.lanes)
                    add_scaled(a.x, left + (uint64_t)column * a.channels, 1.0f, sums.of[0]);
            }
        }
        all[threadIdx.x] = sums;
        combine_lanes(all, a.lanes, together);
        if (result < results && lane == 0) {
            float y[N];
#pragma unroll
            for (int i = 0; i < N; i++) y[i] = all[threadIdx.x].of[0][i] / ((float)rows.len() * (float)columns.len());
            store(a.y, (uint64_t)pixel * a.channels + channel, y);
        }
        // The next results overwrite what lanes may still combine.
        __syncthreads();
    }
}

KERNEL(adaptive_avg_pool_f32, AdaptiveAvgPool<float>) {
    BY_CHANNELS(float, adaptive_avg_pool<4>(a), adaptive_avg_pool<1>(a))
}
KERNEL(adaptive_avg_pool_bf16, AdaptiveAvgPool<bf16>) {
    BY_CHANNELS(bf16, adaptive_avg_pool<8>(a), adaptive_avg_pool<1>(a))
}
KERNEL(adaptive_avg_pool_f16, AdaptiveAvgPool<f16>) {
    BY_CHANNELS(f16, adaptive_avg_pool<8>(a), adaptive_avg_pool<1>(a))
}

template <class E> struct AdaptiveAvgPoolBackward {
    const E *dy;      // [samples, output, channels]
    E *dx;            // [samples, input, channels]
    uint32_t pixels;  // of dx
    uint32_t channels;
    uint32_t input[2], output[2];
};

template <int N, class E> __device__ __forceinline__ void adaptive_avg_pool_backward(const AdaptiveAvgPoolBackward<E> &a) {
    for_pixels<N>(a, [&](uint32_t pixel, uint32_t channel) {
        const Pixel in(pixel, a.input);
        Outputs rows = regions_over(in.row, a.input[0], a.output[0]);
        Outputs columns = regions_over(in.column, a.input[1], a.output[1]);
        float dx[N] = {};
        for (uint32_t row = rows.first; row < rows.end; row++) {
            float height = (float)Region(row, a.input[0], a.output[0]).len();
            for (uint32_t column = columns.first; column < columns.end; column++) {
                float width = (float)Region(column, a.input[1], a.output[1]).len();
                uint32_t from = pixel_at(in.sample, row, column, a.output);
                add_scaled(a.dy, (uint64_t)from * a.channels + channel, 1.0f / (height * width), dx);
            }
        }
        store(a.dx, (uint64_t)pixel * a.channels + channel, dx);
    });
}

KERNEL(adaptive_avg_pool_backward_f32, AdaptiveAvgPoolBackward<float>) {
    BY_CHANNELS(float, adaptive_avg_pool_backward<4>(a), adaptive_avg_pool_backward<1>(a))
}
KERNEL(adaptive_avg_pool_backward_bf16, AdaptiveAvgPoolBackward<bf16>) {
    BY_CHANNELS(bf16, adaptive_avg_pool_backward<8>(a), adaptive_avg_pool_backward<1>(a))
}
KERNEL(adaptive_avg_pool_backward_f16, AdaptiveAvgPoolBackward<f16>) {
    BY_CHANNELS(f16, adaptive_avg_pool_backward<8>(a), adaptive_avg_pool_backward<1>(a))
}
