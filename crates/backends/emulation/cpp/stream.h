// Streams, events and graphs of the emulated driver.
//
// A captured graph has a lane for each stream that joined the capture. Like a stream, a lane runs no further than another one
// waits for it. Work that waits for another rank lets other threads use the driver meanwhile.
#pragma once

#include <time.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace {

using Work = std::function<void()>;

std::recursive_mutex mutex;
// How often this thread has locked it.
thread_local int held = 0;

struct Locked {
    Locked() {
        mutex.lock();
        held++;
    }
    ~Locked() {
        held--;
        mutex.unlock();
    }
};

// Waits while other threads use the driver. Polls, since what it waits for may be another process's doing.
template <typename Ready>
void wait_until(Ready ready) {
    const int depth = held;
    held = 0;
    for (int i = 0; i < depth; ++i) mutex.unlock();
    for (const timespec pause = {0, 20000}; !ready();) nanosleep(&pause, nullptr);
    for (int i = 0; i < depth; ++i) mutex.lock();
    held = depth;
}

// A piece of a graph: work, or, without any, a place in another lane that comes first.
struct Node {
    Work work;
    size_t lane, place;
};

struct Graph {
    std::vector<std::vector<Node>> lanes;

    void run(size_t lane, size_t place, std::vector<size_t> &done) const {
        while (done[lane] < place) {
            const Node &node = lanes[lane][done[lane]++];
            node.work ? node.work() : run(node.lane, node.place, done);
        }
    }

    // Every lane is joined to the first.
    void run() const {
        std::vector<size_t> done(lanes.size());
        run(0, lanes[0].size(), done);
    }
};

struct Stream;

struct Capture {
    Graph graph;
    std::vector<Stream *> streams;  // of each lane
    std::vector<size_t> joined;     // the last place of each lane that another one waits for

    bool is_joined() const {
        for (size_t lane = 1; lane < streams.size(); ++lane) {
            if (joined[lane] != graph.lanes[lane].size()) return false;
        }
        return true;
    }
};

struct Stream {
    void *context;
    std::deque<Work> queue = {};
    unsigned long long done = 0;  // pieces of work that have ended
    std::atomic<bool> running{false};
    std::shared_ptr<Capture> capture = nullptr;
    size_t lane = 0;

    explicit Stream(void *context) : context(context) {}

    unsigned long long end() const { return done + queue.size() + running; }

    // Runs the first of what was queued, up to a place.
    void run(unsigned long long place) {
        while (done < place && end() > done) {
            if (running) {
                // A piece of work that waits for another rank, in another thread.
                wait_until([this] { return !running; });
                continue;
            }
            Work work = std::move(queue.front());
            queue.pop_front();
            running = true;
            work();
            running = false;
            done++;
        }
    }
};

struct Event {
    Stream *stream = nullptr;
    unsigned long long place = 0;
    // Recorded in a capture: the place is one in this lane.
    std::shared_ptr<Capture> capture = nullptr;
    size_t lane = 0;
    bool has_time = false;
};

}  // namespace
