// NVIDIA's management library over nothing: the functions of libnvidia-ml.so.1 that enmasse uses, with their ABI. It shows the
// GPUs of the emulated driver, whether or not CUDA_VISIBLE_DEVICES hides them.
//
// EMULATED_BUSY=GPU:PID:BYTES lists a process on a GPU, EMULATED_BUSY_COUNT times if that is set, and EMULATED_SLOW=GPU:BITS
// says why the GPU lowers its clocks. EMULATED_NVML_ERROR is the status that a question about processes gets, and
// EMULATED_DRIVER the version of the driver. EMULATED_UTILIZATION is the percentage of the time in which each GPU computes. A
// GPU has 80 GiB, of which EMULATED_BUSY's process alone has some, and is 40 degrees warm and one more by its number.
#include <cstdio>
#include <cstdlib>

#include "uuid.h"

namespace {

enum Result { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

struct Process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

struct Utilization {
    unsigned gpu, memory;
};

struct Memory {
    unsigned long long total, free, used;
};

// A handle is the GPU's number, plus one.
int gpu_of(void *device) { return int(reinterpret_cast<long>(device)) - 1; }

// The numbers of a variable, if its first one is this GPU's.
bool of_gpu(const char *variable, int gpu, unsigned long long &first, unsigned long long &second) {
    const char *text = getenv(variable);
    int named = 0;
    return text && sscanf(text, "%d:%lli:%lli", &named, (long long *)&first, (long long *)&second) >= 2 && named == gpu;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int nvmlInit_v2() { return SUCCESS; }

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device) {
    unsigned bus = 0;
    const char *gpus = getenv("EMULATED_GPUS");
    if (sscanf(address, "0000:%02x:00.0", &bus) != 1 || bus < 16 || int(bus - 16) >= (gpus ? atoi(gpus) : 1)) return NOT_FOUND;
    *device = reinterpret_cast<void *>(long(bus - 16 + 1));
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    const char *gpus = getenv("EMULATED_GPUS");
    *count = gpus ? unsigned(atoi(gpus)) : 1;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    unsigned count = 0;
    nvmlDeviceGetCount_v2(&count);
    if (index >= count) return INVALID_ARGUMENT;
    *device = reinterpret_cast<void *>(long(index + 1));
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    const int written = snprintf(text, length, "Emulated GPU %d", gpu_of(device));
    return written < int(length) ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    unsigned long long pid = 0, used = 0;
    if (!of_gpu("EMULATED_BUSY", gpu_of(device), pid, used)) used = 0;
    const unsigned long long total = 80ull << 30;
    *memory = {total, total - used, used};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) {
    if (sensor != 0) return INVALID_ARGUMENT;
    *degrees = unsigned(40 + gpu_of(device));
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    unsigned char uuid[16];
    emulation::write_uuid(gpu_of(device), uuid);
    int written = snprintf(text, length, "GPU-");
    for (int byte = 0; byte < 16 && written < int(length); ++byte) {
        const bool begins = byte == 4 || byte == 6 || byte == 8 || byte == 10;
        written += snprintf(text + written, length - unsigned(written), begins ? "-%02x" : "%02x", uuid[byte]);
    }
    return written < int(length) ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    const char *version = getenv("EMULATED_DRIVER");
    int written = snprintf(text, length, "%s", version ? version : "570.86.10");
    return written < int(length) ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes) {
    unsigned long long pid = 0, bytes = 0;
    unsigned room = *count;
    const char *error = getenv("EMULATED_NVML_ERROR"), *times = getenv("EMULATED_BUSY_COUNT");
    if (error) return atoi(error);
    *count = of_gpu("EMULATED_BUSY", gpu_of(device), pid, bytes) ? times ? atoi(times) : 1 : 0;
    if (*count > room) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; ++i) processes[i] = {unsigned(pid), bytes, ~0u, ~0u};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUtilizationRates(void *, Utilization *rates) {
    const char *gpu = getenv("EMULATED_UTILIZATION");
    *rates = {gpu ? unsigned(atoi(gpu)) : 0, 0};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    unsigned long long none = 0;
    // The first reason is an idle GPU.
    if (!of_gpu("EMULATED_SLOW", gpu_of(device), *reasons, none)) *reasons = 1;
    return SUCCESS;
}
