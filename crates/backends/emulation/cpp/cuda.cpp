// NVIDIA's driver over host memory: the functions of libcuda.so.1 that enmasse uses, with their ABI.
//
// A stream is a queue. Nothing in it runs before the host waits for it, or another stream that the host waits for depends on
// it. So a missing event, or host memory that is reused too early, gives wrong results here every time, and not only on a
// GPU on a bad day. Memory is filled with NaN when it is allocated.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "stream.h"
#include "uuid.h"

// In host.cpp.
extern "C" int emulation_run(void (*kernel)(const void *), const unsigned grid[3], unsigned block, const void *arguments,
                             size_t bytes, int order, char *message, size_t message_bytes);

namespace {

using Address = unsigned long long;

enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NO_BINARY = 209,
    INVALID_PTX = 218,
    CONTEXT_IS_DESTROYED = 709,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
};

const std::map<int, std::pair<const char *, const char *>> RESULTS = {
    {SUCCESS, {"CUDA_SUCCESS", "no error"}},
    {INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {NOT_INITIALIZED, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
    {NO_DEVICE, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
    {INVALID_DEVICE, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
    {INVALID_CONTEXT, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {NO_BINARY, {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"}},
    {INVALID_PTX, {"CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"}},
    {CONTEXT_IS_DESTROYED, {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"}},
    {INVALID_HANDLE, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {NOT_READY, {"CUDA_ERROR_NOT_READY", "device not ready"}},
    {LAUNCH_FAILED, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
    {CAPTURE_UNSUPPORTED, {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
    {CAPTURE_UNJOINED, {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"}},
    {CAPTURE_ISOLATION, {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"}},
    {CAPTURED_EVENT, {"CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"}},
};

struct Kernel {
    std::string name;
    void (*body)(const void *);
    size_t bytes;
    // Whether it waits itself for the kernel before it: one of a cubin for compute capability 9 or later.
    bool waits;
};

bool initialized = false;
// The first error of any work. As on a GPU, everything fails after it.
int failed = SUCCESS;
// Memory of the GPU, with the context in which it was allocated.
struct Allocation {
    size_t bytes;
    void *context;
};
std::map<Address, Allocation> allocated;
size_t used = 0;
std::set<Stream *> streams;
std::map<std::pair<bool, std::string>, Kernel> kernels;
// What the modules are whose kernels wait themselves, and the others.
int waiting_module, plain_module;
thread_local void *context = nullptr;
// A capture that this thread has begun and not ended. Meanwhile it may not allocate or free memory, nor load a module.
thread_local int captures = 0;
// The primary context of each GPU: how often it is retained. With its last release it dies, and all that was made in it.
int device_contexts[64];

long setting(const char *name, long usual) {
    const char *text = getenv(name);
    return text ? atol(text) : usual;
}

// The GPUs that CUDA_VISIBLE_DEVICES leaves visible, by their numbers on the machine.
std::vector<int> visible() {
    std::vector<int> gpus;
    long count = setting("EMULATED_GPUS", 1);
    const char *mask = getenv("CUDA_VISIBLE_DEVICES");
    if (!mask) {
        for (int gpu = 0; gpu < count; ++gpu) gpus.push_back(gpu);
        return gpus;
    }
    std::stringstream words(mask);
    // As with the real driver, a number that no GPU has hides those after it.
    for (std::string word; std::getline(words, word, ',');) {
        int gpu = word.empty() ? -1 : atoi(word.c_str());
        if (gpu < 0 || gpu >= count) break;
        gpus.push_back(gpu);
    }
    return gpus;
}

long devices() { return long(visible().size()); }
// Memory is taken in pieces of 2 MiB.
size_t taken(size_t bytes) { return (bytes + (2 << 20) - 1) >> 21 << 21; }
size_t memory() { return size_t(setting("EMULATED_GPU_MIB", 4096)) << 20; }

bool is_alive(void *chosen) { return *static_cast<int *>(chosen) > 0; }

int state() {
    if (!initialized) return NOT_INITIALIZED;
    if (!context) return INVALID_CONTEXT;
    return is_alive(context) ? failed : CONTEXT_IS_DESTROYED;
}

// Queues work, or records it while the stream is captured.
int enqueue(void *handle, Work work) {
    auto *stream = static_cast<Stream *>(handle);
    if (int wrong = state()) return wrong;
    if (!streams.count(stream)) return INVALID_HANDLE;
    if (stream->capture) {
        stream->capture->graph.lanes[stream->lane].push_back(Node{std::move(work), 0, 0});
    } else {
        stream->queue.push_back(std::move(work));
    }
    return SUCCESS;
}

// A symbol of this library, which other libraries in the process cannot hide.
void *own_symbol(const std::string &name) {
    static void *self = [] {
        Dl_info info;
        return dladdr(device_contexts, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    }();
    return self ? dlsym(self, name.c_str()) : nullptr;
}

// As on a GPU: work that may use memory or a graph ends before that goes.
void run_all() {
    const std::vector<Stream *> present(streams.begin(), streams.end());
    for (Stream *stream : present) {
        if (streams.count(stream) && stream->context == context) stream->run(stream->end());
    }
}

// Whether bytes of device memory lie in one allocation.
bool is_allocated(Address start, size_t bytes) {
    auto after = allocated.upper_bound(start);
    if (after == allocated.begin()) return false;
    auto found = std::prev(after);
    return start + bytes <= found->first + found->second.bytes;
}

}  // namespace

#define LOCKED Locked locked
#define CHECKED(function)           \
    LOCKED;                         \
    if (int wrong = state()) return wrong
// Of what a thread that captures may not do.
#define NOT_CAPTURED() \
    if (captures) return CAPTURE_UNSUPPORTED

#pragma GCC visibility push(default)
extern "C" {

// For the other emulated libraries: runs a function with a copy of its data, in the order of the stream.
int emulation_enqueue(void *stream, void (*function)(const void *), const void *data, size_t bytes) {
    LOCKED;
    auto begin = static_cast<const char *>(data);
    auto copy = std::make_shared<std::vector<char>>(begin, begin + bytes);
    return enqueue(stream, [function, copy] { function(copy->data()); });
}

// Whether the GPU of the current context computes this wrongly: EMULATED_WRONG=GPU:WHAT says so.
int emulation_is_wrong(const char *what) {
    const char *text = getenv("EMULATED_WRONG");
    const char *named = text ? strchr(text, ':') : nullptr;
    auto current = static_cast<int *>(context);
    if (!named || !current || strcmp(named + 1, what)) return 0;
    return visible()[size_t(current - device_contexts)] == atoi(text);
}

int emulation_is_capturing(void *handle) {
    LOCKED;
    auto *stream = static_cast<Stream *>(handle);
    return streams.count(stream) && stream->capture;
}

// For work of the other libraries: waits until something is ready.
void emulation_wait(int (*ready)(const void *), const void *data) {
    wait_until([=] { return ready(data) != 0; });
}

int cuInit(unsigned flags) {
    LOCKED;
    if (flags) return INVALID_VALUE;
    if (devices() == 0) return NO_DEVICE;
    initialized = true;
    return SUCCESS;
}

int cuDriverGetVersion(int *version) {
    *version = int(setting("EMULATED_CUDA", 12080));
    return SUCCESS;
}

int cuGetErrorName(int error, const char **text) {
    auto found = RESULTS.find(error);
    *text = found == RESULTS.end() ? nullptr : found->second.first;
    return *text ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int error, const char **text) {
    auto found = RESULTS.find(error);
    *text = found == RESULTS.end() ? nullptr : found->second.second;
    return *text ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetCount(int *count) {
    *count = int(devices());
    return initialized ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int ordinal) {
    if (!initialized) return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= devices()) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int length, int device) {
    snprintf(name, size_t(length), "Emulated GPU %d", visible()[size_t(device)]);
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, size_t(length), "0000:%02x:00.0", 16 + visible()[size_t(device)]);
    return SUCCESS;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    emulation::write_uuid(visible()[size_t(device)], uuid);
    return SUCCESS;
}

static std::pair<int, int> capability() {
    int major = 9, minor = 0;
    if (const char *text = getenv("EMULATED_CAPABILITY")) sscanf(text, "%d.%d", &major, &minor);
    return {major, minor};
}

int cuDeviceGetAttribute(int *value, int attribute, int) {
    const auto [major, minor] = capability();
    const std::map<int, int> values = {{16, 4}, {38, 1 << 20}, {75, major}, {76, minor}};
    auto found = values.find(attribute);
    if (found == values.end()) return INVALID_VALUE;
    *value = found->second;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **made, int device) {
    LOCKED;
    if (!initialized) return NOT_INITIALIZED;
    device_contexts[device]++;
    *made = &device_contexts[device];
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    LOCKED;
    int *released = &device_contexts[device];
    if (*released == 0) return INVALID_CONTEXT;
    if (--*released > 0) return SUCCESS;
    const std::vector<Stream *> present(streams.begin(), streams.end());
    for (Stream *stream : present) {
        if (stream->context != released) continue;
        stream->run(stream->end());
        streams.erase(stream);
        delete stream;
    }
    for (auto memory = allocated.begin(); memory != allocated.end();) {
        if (memory->second.context != released) {
            ++memory;
            continue;
        }
        used -= taken(memory->second.bytes);
        free(reinterpret_cast<void *>(memory->first));
        memory = allocated.erase(memory);
    }
    return SUCCESS;
}

int cuCtxSetCurrent(void *chosen) {
    LOCKED;
    if (chosen && !is_alive(chosen)) return CONTEXT_IS_DESTROYED;
    context = chosen;
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    CHECKED();
    *free = memory() - used;
    *total = memory();
    return SUCCESS;
}

int cuMemAlloc_v2(Address *place, size_t bytes) {
    CHECKED();
    NOT_CAPTURED();
    if (bytes == 0) return INVALID_VALUE;
    void *start = bytes <= memory() && used + taken(bytes) <= memory() ? aligned_alloc(512, (bytes + 511) / 512 * 512) : nullptr;
    if (!start) return OUT_OF_MEMORY;
    memset(start, 0xFF, bytes);
    *place = Address(start);
    allocated[*place] = {bytes, context};
    used += taken(bytes);
    return SUCCESS;
}

int cuMemFree_v2(Address place) {
    LOCKED;
    NOT_CAPTURED();
    auto found = allocated.find(place);
    if (found == allocated.end()) return INVALID_VALUE;
    run_all();
    used -= taken(found->second.bytes);
    allocated.erase(found);
    free(reinterpret_cast<void *>(place));
    return SUCCESS;
}

int cuMemHostAlloc(void **place, size_t bytes, unsigned) {
    CHECKED();
    NOT_CAPTURED();
    // The limit is that of one allocation.
    if (bytes >> 20 >= size_t(setting("EMULATED_PINNED_MIB", 1 << 20))) return OUT_OF_MEMORY;
    *place = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!*place) return OUT_OF_MEMORY;
    memset(*place, 0xFF, bytes);
    return SUCCESS;
}

int cuMemFreeHost(void *place) {
    LOCKED;
    free(place);
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream) {
    CHECKED();
    if (!is_allocated(to, bytes)) return INVALID_VALUE;
    return enqueue(stream, [=] { memcpy(reinterpret_cast<void *>(to), from, bytes); });
}

int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) {
    CHECKED();
    if (!is_allocated(from, bytes)) return INVALID_VALUE;
    return enqueue(stream, [=] { memcpy(to, reinterpret_cast<const void *>(from), bytes); });
}

int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream) {
    CHECKED();
    if (!is_allocated(from, bytes) || !is_allocated(to, bytes)) return INVALID_VALUE;
    return enqueue(stream, [=] { memmove(reinterpret_cast<void *>(to), reinterpret_cast<const void *>(from), bytes); });
}

int cuMemsetD8Async(Address place, unsigned char value, size_t bytes, void *stream) {
    CHECKED();
    if (!is_allocated(place, bytes)) return INVALID_VALUE;
    return enqueue(stream, [=] { memset(reinterpret_cast<void *>(place), value, bytes); });
}

int cuStreamCreate(void **made, unsigned) {
    CHECKED();
    auto *stream = new Stream(context);
    streams.insert(stream);
    *made = stream;
    return SUCCESS;
}

int cuStreamDestroy_v2(void *handle) {
    LOCKED;
    auto *stream = static_cast<Stream *>(handle);
    if (!streams.count(stream)) return INVALID_HANDLE;
    stream->run(stream->end());
    streams.erase(stream);
    delete stream;
    return SUCCESS;
}

int cuStreamSynchronize(void *handle) {
    CHECKED();
    auto *stream = static_cast<Stream *>(handle);
    if (!streams.count(stream)) return INVALID_HANDLE;
    if (stream->capture) return CAPTURE_UNSUPPORTED;
    stream->run(stream->end());
    return failed;
}

// A GPU would have run what is in the stream by now.
int cuStreamQuery(void *handle) { return cuStreamSynchronize(handle); }

int cuEventCreate(void **made, unsigned flags) {
    CHECKED();
    // Blocking, and without a timestamp.
    if (flags & ~3u) return INVALID_VALUE;
    *made = new Event;
    static_cast<Event *>(*made)->has_time = !(flags & 2);
    return SUCCESS;
}

int cuEventDestroy_v2(void *event) {
    LOCKED;
    delete static_cast<Event *>(event);
    return SUCCESS;
}

int cuEventRecord(void *handle, void *stream) {
    CHECKED();
    auto *recorded = static_cast<Stream *>(stream);
    if (!streams.count(recorded)) return INVALID_HANDLE;
    const auto &capture = recorded->capture;
    unsigned long long place = capture ? capture->graph.lanes[recorded->lane].size() : recorded->end();
    auto *event = static_cast<Event *>(handle);
    *event = Event{recorded, place, capture, recorded->lane, event->has_time};
    return SUCCESS;
}

int cuEventQuery(void *handle) {
    CHECKED();
    auto *event = static_cast<Event *>(handle);
    if (event->capture) return CAPTURED_EVENT;
    return !event->stream || event->stream->done >= event->place ? SUCCESS : NOT_READY;
}

int cuEventSynchronize(void *handle) {
    CHECKED();
    auto *event = static_cast<Event *>(handle);
    if (event->capture) return CAPTURED_EVENT;
    if (event->stream) event->stream->run(event->place);
    return failed;
}

int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    CHECKED();
    for (auto *event : {static_cast<Event *>(from), static_cast<Event *>(to)}) {
        if (!event->has_time || !event->stream) return INVALID_HANDLE;
        if (event->stream->done < event->place) return NOT_READY;
    }
    *milliseconds = 0.001f;
    return SUCCESS;
}

int cuStreamWaitEvent(void *handle, void *waited_for, unsigned) {
    CHECKED();
    auto *stream = static_cast<Stream *>(handle);
    Event event = *static_cast<Event *>(waited_for);
    if (!event.stream) return SUCCESS;
    if (!event.capture) {
        if (stream->capture) return CAPTURE_ISOLATION;
        return enqueue(stream, [event] { event.stream->run(event.place); });
    }
    if (event.stream->capture != event.capture) return CAPTURED_EVENT;
    Capture &capture = *event.capture;
    if (!stream->capture) {
        // It joins the capture, with a lane of its own.
        stream->capture = event.capture;
        stream->lane = capture.streams.size();
        capture.streams.push_back(stream);
        capture.joined.push_back(0);
        capture.graph.lanes.emplace_back();
    }
    if (stream->capture != event.capture) return CAPTURE_ISOLATION;
    capture.graph.lanes[stream->lane].push_back(Node{nullptr, event.lane, size_t(event.place)});
    capture.joined[event.lane] = std::max(capture.joined[event.lane], size_t(event.place));
    return SUCCESS;
}

// The architecture of a cubin, such as 90: its flags have it, in one of two places.
static int architecture(const unsigned char *cubin) {
    unsigned flags;
    memcpy(&flags, cubin + 48, sizeof flags);
    return int((cubin[7] == 0x33 ? flags : flags >> 8) & 0xFF);
}

int cuModuleLoadDataEx(void **module, const void *binary, unsigned count, int *options, void **values) {
    CHECKED();
    NOT_CAPTURED();
    if (memcmp(binary, "\x7f" "ELF", 4) == 0) {
        const int of = architecture(static_cast<const unsigned char *>(binary));
        const auto [major, minor] = capability();
        if (of / 10 != major || of % 10 > minor) return NO_BINARY;
        *module = of >= 90 ? &waiting_module : &plain_module;
        return SUCCESS;
    }
    if (!strstr(static_cast<const char *>(binary), ".version")) {
        char *log = nullptr;
        size_t room = 0;
        for (unsigned option = 0; option < count; option++) {
            if (options[option] == 5) log = static_cast<char *>(values[option]);
            if (options[option] == 6) room = reinterpret_cast<size_t>(values[option]);
        }
        if (log && room) snprintf(log, room, "ptxas application ptx input, line 1; fatal   : Missing .version directive\nptxas fatal   : aborted\n");
        return INVALID_PTX;
    }
    *module = &plain_module;
    return SUCCESS;
}

int cuModuleUnload(void *) { return SUCCESS; }

int cuModuleGetFunction(void **function, void *module, const char *name) {
    CHECKED();
    auto body = reinterpret_cast<void (*)(const void *)>(own_symbol(name));
    auto bytes = static_cast<const unsigned long *>(own_symbol(std::string(name) + "_size"));
    if (!body || !bytes) return NOT_FOUND;
    const bool waits = module == &waiting_module;
    *function = &(kernels[{waits, name}] = Kernel{name, body, *bytes, waits});
    return SUCCESS;
}

struct LaunchAttribute {
    int kind;
    char padding[4];
    int value[16];
};

struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    void *stream;
    const LaunchAttribute *attributes;
    unsigned count;
};

int cuLaunchKernelEx(const LaunchConfig *launch, void *function, void **parameters, void **) {
    CHECKED();
    auto *kernel = static_cast<const Kernel *>(function);
    const auto [gx, gy, gz] = launch->grid;
    const auto [bx, by, bz] = launch->block;
    if (!gx || gx > 0x7FFFFFFF || !gy || gy > 65535 || !gz || gz > 65535 || !bx || by != 1 || bz != 1 || bx > 1024 || launch->shared) {
        return INVALID_VALUE;
    }
    for (unsigned index = 0; index < launch->count; index++) {
        // Programmatic stream serialization. A GPU would take it for a kernel that does not wait itself, and run that too early.
        if (launch->attributes[index].kind != 6 || !kernel->waits) return INVALID_VALUE;
    }
    auto begin = static_cast<const char *>(parameters[0]);
    auto copy = std::make_shared<std::vector<char>>(begin, begin + kernel->bytes);
    // Blocks run in an order that nobody can rely on: another one for each launch.
    static unsigned launches = 0;
    const int order = 2 + int(launches++ % 1000);
    // A wrong kernel does nothing.
    const bool is_wrong = emulation_is_wrong(kernel->name.c_str());
    return enqueue(launch->stream, [=, gx = gx, gy = gy, gz = gz, bx = bx] {
        if (is_wrong) return;
        const unsigned grid[3] = {gx, gy, gz};
        char message[512] = "";
        if (failed || emulation_run(kernel->body, grid, bx, copy->data(), copy->size(), order, message, sizeof(message)) == 0) return;
        fprintf(stderr, "emulated kernel %s: %s\n", kernel->name.c_str(), message);
        failed = LAUNCH_FAILED;
    });
}

int cuStreamBeginCapture_v2(void *handle, int) {
    CHECKED();
    auto *stream = static_cast<Stream *>(handle);
    if (!streams.count(stream)) return INVALID_HANDLE;
    if (stream->capture) return CAPTURE_UNSUPPORTED;
    stream->lane = 0;
    stream->capture = std::make_shared<Capture>();
    stream->capture->graph.lanes.emplace_back();
    stream->capture->streams.push_back(stream);
    stream->capture->joined.push_back(0);
    captures++;
    return SUCCESS;
}

int cuStreamEndCapture(void *handle, void **graph) {
    CHECKED();
    auto *stream = static_cast<Stream *>(handle);
    if (!streams.count(stream) || !stream->capture || stream->lane) return INVALID_VALUE;
    captures--;
    const auto capture = stream->capture;
    for (Stream *captured : capture->streams) captured->capture = nullptr;
    *graph = new Graph(capture->graph);
    return capture->is_joined() ? SUCCESS : CAPTURE_UNJOINED;
}

int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long) {
    CHECKED();
    *made = new Graph(*static_cast<Graph *>(graph));
    return SUCCESS;
}

int cuGraphLaunch(void *handle, void *stream) {
    CHECKED();
    auto *graph = static_cast<Graph *>(handle);
    return enqueue(stream, [graph] { graph->run(); });
}

int cuGraphExecDestroy(void *graph) {
    LOCKED;
    run_all();
    delete static_cast<Graph *>(graph);
    return SUCCESS;
}

int cuGraphDestroy(void *graph) {
    LOCKED;
    delete static_cast<Graph *>(graph);
    return SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
