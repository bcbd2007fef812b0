// host_pool.h -- a few CPU threads that share a range of work
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace minicnn {

// `threads` of them, the caller's included. One caller at a time.
class Pool {
public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return count; }

    // Calls body(first, last) for ranges of at most `chunk` that together are [0, total), on all threads at once;
    // returns when all have returned. Ranges are handed out to whoever is free.
    template <class Body>
    void parallel(uint64_t total, uint64_t chunk, Body& body) {
        auto call = [](void* context, uint64_t first, uint64_t last) { (*static_cast<Body*>(context))(first, last); };
        run({call, &body, total, chunk});
    }

private:
    struct Job {
        void (*call)(void* context, uint64_t first, uint64_t last);
        void* context;
        uint64_t total, chunk;
    };
    void run(const Job& job);
    void work();
    void serve(int cpu);
    void start_threads();

    const int count;
    int forks_seen;
    std::vector<std::thread> helpers;
    Job job{};
    // The door to the job: which one it is (upper half), whether it is open, and how many helpers are inside. Helpers
    // who come late find it closed, so nobody waits for one that the system hasn't woken yet.
    alignas(64) std::atomic<uint64_t> door{0};
    alignas(64) std::atomic<uint64_t> next{0};
    alignas(64) std::atomic<int> sleepers{0};
    std::atomic<bool> is_ending{false};
    std::mutex mutex;
    std::condition_variable wake;
};

}  // namespace minicnn
