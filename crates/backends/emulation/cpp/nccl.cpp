// NCCL over memory that processes share: the functions of libnccl.so.2 that enmasse uses, with their ABI.
//
// The identifier of a world is the path of a memory file without a name. An operation is work of its stream in the emulated
// driver, and waits there for the other ranks, as a kernel of NCCL's does on a GPU. Sums are in the order of ranks, each rounded
// to the element type. EMULATED_NCCL is the version, EMULATED_NCCL_ABSENT a rank that never joins, and EMULATED_NCCL_FAILURE
// "RANK OPERATION RESULT" an asynchronous error of a rank: from that operation on it hangs until it is aborted. A negative RESULT
// is a signal that ends the rank's process there. With EMULATED_NCCL_STUCK an abort does not return. An operation that is
// captured is in progress until all ranks have captured it, as where NCCL exchanges buffers meanwhile. Memory that is freed while a
// communicator has it registered ends the process.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "library.h"

// In the emulated driver.
extern "C" void emulation_wait(int (*ready)(const void *), const void *data);
extern "C" int emulation_is_capturing(void *stream);
extern "C" int cuMemAlloc_v2(unsigned long *place, size_t bytes);
extern "C" int cuMemFree_v2(unsigned long place);

namespace {

enum Result { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum Type { FLOAT32 = 7, BFLOAT16 = 9 };

constexpr int MAX_RANKS = 16;
constexpr size_t CHUNK = 1 << 16;

enum Kind { ALL_REDUCE, ALL_GATHER, REDUCE, BROADCAST };

// What a rank is about to do. Ranks that differ would hang on a GPU.
struct Operation {
    int kind, type;
    size_t count;
};

struct World {
    std::atomic<int> joined;
    // How often each rank has arrived at a place where all wait for each other.
    std::atomic<unsigned long> arrived[MAX_RANKS];
    // How many operations each rank has captured.
    std::atomic<unsigned long> captured[MAX_RANKS];
    Operation operations[MAX_RANKS];
    unsigned char data[MAX_RANKS][CHUNK];
};

struct Communicator {
    World *world;
    int rank, ranks;
    unsigned long arrivals = 0, operations = 0;
    std::atomic<bool> aborted{false};
    std::atomic<int> error{SUCCESS};
    // What EMULATED_NCCL_FAILURE says, if it is about this rank.
    unsigned long fails_at = 0;
    int fails_with = SUCCESS;
};

// The argument of ncclCommInitRankConfig in version 2.17.
struct Config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, min_blocks, max_blocks;
    const char *network;
};

// Memory of ncclMemAlloc, and with whom it is registered.
std::mutex allocations_mutex;
std::map<void *, std::pair<size_t, std::set<const Communicator *>>> allocations;

// A communicator that has ended uses no memory.
void forget(const Communicator *comm) {
    std::lock_guard<std::mutex> lock(allocations_mutex);
    for (auto &[place, allocation] : allocations) allocation.second.erase(comm);
}

struct Identifier {
    char path[128];
};

bool is_here(const Communicator &comm) {
    for (int rank = 0; rank < comm.ranks; ++rank) {
        if (comm.world->arrived[rank] < comm.arrivals) return false;
    }
    return true;
}

bool is_captured(const Communicator &comm) {
    for (int rank = 0; rank < comm.ranks; ++rank) {
        if (comm.world->captured[rank] < comm.world->captured[comm.rank]) return false;
    }
    return true;
}

int may_go_on(const void *data) {
    const auto &comm = *static_cast<const Communicator *>(data);
    return comm.aborted || is_here(comm);
}

int is_aborted(const void *data) { return static_cast<const Communicator *>(data)->aborted; }

// Waits for all ranks; false after an abort.
bool meet(Communicator &comm) {
    comm.world->arrived[comm.rank] = ++comm.arrivals;
    if (!may_go_on(&comm)) emulation_wait(may_go_on, &comm);
    return !comm.aborted;
}

bool begin(Communicator &comm, const Operation &operation) {
    if (comm.aborted) return false;
    if (++comm.operations == comm.fails_at) {
        if (comm.fails_with < 0) raise(-comm.fails_with);
        comm.error = comm.fails_with;
        emulation_wait(is_aborted, &comm);
        return false;
    }
    comm.world->operations[comm.rank] = operation;
    if (!meet(comm)) return false;
    for (int rank = 0; rank < comm.ranks; ++rank) {
        const Operation &other = comm.world->operations[rank];
        if (other.kind == operation.kind && other.type == operation.type && other.count == operation.count) continue;
        fprintf(stderr, "emulated NCCL: ranks %d and %d call different operations\n", comm.rank, rank);
        abort();
    }
    return true;
}

size_t size_of(int type) { return type == FLOAT32 ? 4 : type == BFLOAT16 ? 2 : 1; }

void sum(const World &world, int ranks, int type, size_t bytes, unsigned char *to) {
    for (size_t at = 0; at < bytes; at += size_of(type)) {
        float total = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            uint16_t narrow;
            float value;
            memcpy(&narrow, world.data[rank] + at, sizeof narrow);
            if (type == BFLOAT16) value = emulation::from_bf16(narrow);
            else memcpy(&value, world.data[rank] + at, sizeof value);
            total = rank ? total + value : value;
            if (type == BFLOAT16) total = emulation::from_bf16(emulation::to_bf16(total));
        }
        uint16_t narrow = emulation::to_bf16(total);
        if (type == BFLOAT16) memcpy(to + at, &narrow, sizeof narrow);
        else memcpy(to + at, &total, sizeof total);
    }
}

// A line for NCCL_DEBUG, in the file that NCCL_DEBUG_FILE names, where %p is the number of the process.
void say(int rank, int ranks) {
    std::string path = getenv("NCCL_DEBUG_FILE") ? getenv("NCCL_DEBUG_FILE") : "/dev/stdout";
    size_t place = path.find("%p");
    if (place != std::string::npos) path.replace(place, 2, std::to_string(getpid()));
    FILE *file = fopen(path.c_str(), "w");
    if (!file) return;
    fprintf(file, "emulated:%d:%d [%d] NCCL INFO a world of %d ranks\n", getpid(), getpid(), rank, ranks);
    fclose(file);
}

struct Call {
    Communicator *comm;
    Kind kind;
    int type;
    const unsigned char *from;
    unsigned char *to;
    size_t count;
};

void run(const Call *call) {
    Communicator &comm = *call->comm;
    if (!begin(comm, Operation{call->kind, call->type, call->count})) return;
    const size_t bytes = call->count * size_of(call->type);
    for (size_t start = 0; start < bytes; start += CHUNK) {
        const size_t length = bytes - start < CHUNK ? bytes - start : CHUNK;
        memcpy(comm.world->data[comm.rank], call->from + start, length);
        if (!meet(comm)) return;
        switch (call->kind) {
            case ALL_GATHER:
                for (int rank = 0; rank < comm.ranks; ++rank) {
                    memcpy(call->to + size_t(rank) * bytes + start, comm.world->data[rank], length);
                }
                break;
            case BROADCAST: memcpy(call->to + start, comm.world->data[0], length); break;
            case REDUCE:
                if (comm.rank) break;
                [[fallthrough]];
            case ALL_REDUCE: sum(*comm.world, comm.ranks, call->type, length, call->to + start);
        }
        if (!meet(comm)) return;
    }
}

int call(Kind kind, const void *from, void *to, size_t count, int type, void *handle, void *stream) {
    auto *comm = static_cast<Communicator *>(handle);
    if (type != FLOAT32 && type != BFLOAT16) return INVALID_ARGUMENT;
    const Call call = {comm, kind, type, static_cast<const unsigned char *>(from), static_cast<unsigned char *>(to), count};
    if (emulation::enqueue(stream, run, call)) return INVALID_USAGE;
    if (!emulation_is_capturing(stream)) return SUCCESS;
    comm->world->captured[comm->rank]++;
    return IN_PROGRESS;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int ncclGetVersion(int *version) {
    const char *text = getenv("EMULATED_NCCL");
    *version = text ? atoi(text) : 22703;
    return SUCCESS;
}

int ncclGetUniqueId(Identifier *id) {
    // The file stays open, so that the others find it.
    int file = memfd_create("emulated NCCL", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(World))) return INVALID_USAGE;
    memset(id, 0, sizeof *id);
    snprintf(id->path, sizeof id->path, "/proc/%d/fd/%d", getpid(), file);
    return SUCCESS;
}

int ncclCommInitRankConfig(void **made, int ranks, Identifier id, int rank, const Config *config) {
    if (config->magic != 0xcafebeef || config->size < sizeof(Config) || config->blocking != 0) return INVALID_ARGUMENT;
    if (config->version < 21700 || config->max_blocks < 1 || config->max_blocks > 32 || config->network) return INVALID_ARGUMENT;
    if (ranks > MAX_RANKS) return INVALID_ARGUMENT;
    int file = open(id.path, O_RDWR | O_CLOEXEC);
    void *memory = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(World), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (memory == MAP_FAILED) return REMOTE_ERROR;
    auto *comm = new Communicator{static_cast<World *>(memory), rank, ranks};
    int fails = -1, result = SUCCESS;
    unsigned long operation = 0;
    const char *failure = getenv("EMULATED_NCCL_FAILURE");
    if (failure && sscanf(failure, "%d %lu %d", &fails, &operation, &result) == 3 && fails == rank) {
        comm->fails_at = operation;
        comm->fails_with = result;
    }
    const char *absent = getenv("EMULATED_NCCL_ABSENT");
    if (!absent || atoi(absent) != rank) comm->world->joined++;
    if (getenv("NCCL_DEBUG")) say(rank, ranks);
    *made = comm;
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(void *handle, int *result) {
    const auto &comm = *static_cast<const Communicator *>(handle);
    const bool goes_on = comm.world->joined < comm.ranks || !is_captured(comm);
    *result = comm.error ? comm.error.load() : goes_on ? IN_PROGRESS : SUCCESS;
    return SUCCESS;
}

// The communicator itself stays: work that was queued finds that it was aborted.
int ncclCommAbort(void *handle) {
    auto *comm = static_cast<Communicator *>(handle);
    comm->aborted = true;
    forget(comm);
    while (getenv("EMULATED_NCCL_STUCK")) pause();
    return SUCCESS;
}

int ncclCommFinalize(void *) { return SUCCESS; }

int ncclCommDestroy(void *handle) { return ncclCommAbort(handle); }

int ncclMemAlloc(void **place, size_t bytes) {
    unsigned long address;
    if (cuMemAlloc_v2(&address, bytes)) return UNHANDLED_CUDA_ERROR;
    *place = reinterpret_cast<void *>(address);
    std::lock_guard<std::mutex> lock(allocations_mutex);
    allocations[*place] = {bytes, {}};
    return SUCCESS;
}

int ncclMemFree(void *place) {
    std::lock_guard<std::mutex> lock(allocations_mutex);
    auto found = allocations.find(place);
    if (found == allocations.end()) return INVALID_ARGUMENT;
    if (!found->second.second.empty()) {
        fprintf(stderr, "emulated NCCL: memory is freed that a communicator has registered\n");
        abort();
    }
    allocations.erase(found);
    return cuMemFree_v2(reinterpret_cast<unsigned long>(place)) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

int ncclCommRegister(void *comm, void *place, size_t bytes, void **handle) {
    std::lock_guard<std::mutex> lock(allocations_mutex);
    auto found = allocations.find(place);
    if (found == allocations.end() || bytes > found->second.first) return INVALID_ARGUMENT;
    found->second.second.insert(static_cast<const Communicator *>(comm));
    *handle = place;
    return SUCCESS;
}

int ncclCommDeregister(void *comm, void *handle) {
    std::lock_guard<std::mutex> lock(allocations_mutex);
    auto found = allocations.find(handle);
    const bool was_registered = found != allocations.end() && found->second.second.erase(static_cast<const Communicator *>(comm));
    return was_registered ? SUCCESS : INVALID_ARGUMENT;
}

const char *ncclGetErrorString(int result) {
    switch (result) {
        case SUCCESS: return "no error";
        case UNHANDLED_CUDA_ERROR: return "unhandled cuda error";
        case INVALID_ARGUMENT: return "invalid argument";
        case INVALID_USAGE: return "invalid usage";
        case REMOTE_ERROR: return "remote process exited or there was a network error";
        case IN_PROGRESS: return "NCCL operation in progress";
        default: return "internal error";
    }
}

const char *ncclGetLastError(void *) { return ""; }

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream) {
    return operation ? INVALID_ARGUMENT : call(ALL_REDUCE, from, to, count, type, comm, stream);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream) {
    return call(ALL_GATHER, from, to, count, type, comm, stream);
}

// The root is rank 0.
int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root, void *comm, void *stream) {
    return operation || root ? INVALID_ARGUMENT : call(REDUCE, from, to, count, type, comm, stream);
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream) {
    return root ? INVALID_ARGUMENT : call(BROADCAST, from, to, count, type, comm, stream);
}

}  // extern "C"
#pragma GCC visibility pop
