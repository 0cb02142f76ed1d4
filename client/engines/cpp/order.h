// Trains and judges the clients of an order one after another, each inside the cache, on several threads.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "network.h"

namespace {

// Clients are summed in groups of fixed size, so that the sum does not depend on the number of threads.
constexpr int GROUP = 4;

// One order: the received models, its clients, and the results, filled in from several threads.
class Order {
  public:
    Order(int chains, const float* models, const float* lrs, int clients, const Work* work, double* train_losses,
          double* losses)
        : chains_(chains), clients_(clients), lrs_(lrs), work_(work), train_losses_(train_losses), losses_(losses),
          models_(size_t(chains) * WEIGHTS), sums_(size_t(chains) * WEIGHTS) {
        each_parameter([&](int native, int torch) {
            for (int c = 0; c < chains; c++)
                models_[size_t(c) * WEIGHTS + native] = models[size_t(c) * TORCH_SIZE + torch];
        });
    }

    void run(const float* pixels, int threads, bool train) {
        int groups = (clients_ + GROUP - 1) / GROUP;
        std::vector<Worker> workers;
        threads = std::max(1, std::min(threads, groups));
        for (int t = 0; t < threads; t++) workers.emplace_back(pixels, train ? size_t(chains_) * WEIGHTS : 0);
        std::vector<std::thread> others;
        try {
            for (int t = 1; t < threads; t++) others.emplace_back([&, t] { drain(workers[t], groups, train); });
        } catch (const std::exception&) {
            // Those that could be started do the work of all: groups are taken, not given.
        }
        drain(workers[0], groups, train);
        for (auto& other : others) other.join();
    }

    void mean(float* out) const {
        each_parameter([&](int native, int torch) {
            for (int c = 0; c < chains_; c++)
                out[size_t(c) * TORCH_SIZE + torch] = float(sums_[size_t(c) * WEIGHTS + native] / clients_);
        });
    }

  private:
    struct Worker {
        Worker(const float* pixels, size_t size) : network(pixels), w(WEIGHTS), sums(size) {}
        Network network;
        Buffer<float> w;
        Buffer<double> sums;
    };

    void drain(Worker& worker, int groups, bool train) {
        NoDenormals here;
        for (int group; (group = next_++) < groups;) {
            if (train) std::memset(worker.sums, 0, size_t(chains_) * WEIGHTS * sizeof(double));
            for (int k = group * GROUP; k < std::min(clients_, (group + 1) * GROUP); k++) client(worker, k, train);
            if (train) add_in_turn(worker, group);
        }
    }

    void client(Worker& worker, int k, bool train) {
        const Work& work = work_[k];
        for (int c = 0; c < chains_; c++) {
            const float* model = models_ + size_t(c) * WEIGHTS;
            if (work.judged_count) losses_[size_t(c) * clients_ + k] = worker.network.mean_loss(model, work);
            if (!train) continue;
            std::memcpy(worker.w, model, WEIGHTS * sizeof(float));
            double total = 0.0;
            for (int64_t i = 0; i < work.iterations; i++) {
                if (i + 1 < work.iterations) prefetch(work, work.steps + (i + 1) * work.batch);
                total += worker.network.step(worker.w, lrs_[c], work, work.steps + i * work.batch);
            }
            train_losses_[size_t(c) * clients_ + k] = total / double(work.iterations);
            double* sums = worker.sums + size_t(c) * WEIGHTS;
            const float* w = worker.w;
            for (int i = 0; i < WEIGHTS; i++) sums[i] += double(w[i]);
        }
    }

    void add_in_turn(const Worker& worker, int group) {
        std::unique_lock<std::mutex> lock(mutex_);
        turned_.wait(lock, [&] { return turn_ == group; });
        for (size_t i = 0; i < size_t(chains_) * WEIGHTS; i++) sums_[i] += worker.sums[i];
        turn_++;
        turned_.notify_all();
    }

    const int chains_, clients_;
    const float* lrs_;
    const Work* work_;
    double *train_losses_, *losses_;
    Buffer<float> models_;
    Buffer<double> sums_;
    std::atomic<int> next_{0};
    std::mutex mutex_;
    std::condition_variable turned_;
    int turn_ = 0;
};

}  // namespace
