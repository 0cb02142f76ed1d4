// Trains and judges clients one after another, each inside the cache. network.h, written for the network at hand,
// defines
//     using Layers = std::tuple<...>;  using Output = Box<classes, 1, 1>;
#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "conv.h"
#include "dense.h"
#include "network.h"

namespace {

constexpr int CLASSES = Output::size;
// Larger batches are taken in parts of this many images, so that memory stays bounded.
constexpr int IMAGES = 8;
// Clients are summed in groups of fixed size, so that the sum does not depend on the number of threads.
constexpr int GROUP = 4;

struct Work {
    const void* x;
    const int64_t* y;
    int64_t rows, is_float;
    const int64_t* steps;
    int64_t iterations, batch;
    const int64_t* judged;
    int64_t judged_count;
};

enum Status { OK = 0, BAD_ROW = 1, BAD_LABEL = 2, NO_MEMORY = 3 };

template <int I>
constexpr int offset_of(bool native) {
    if constexpr (I == 0) return 0;
    else {
        using Layer = std::tuple_element_t<I - 1, Layers>;
        return offset_of<I - 1>(native) + (native ? Layer::weights : Layer::torch_size);
    }
}
constexpr int DEPTH = std::tuple_size_v<Layers>;
constexpr int WEIGHTS = offset_of<DEPTH>(true), TORCH_SIZE = offset_of<DEPTH>(false);
using First = std::tuple_element_t<0, Layers>;

// Calls pair(native index, torch index) for every parameter of the network.
template <int I = 0, class F>
void each_parameter(F pair) {
    if constexpr (I < DEPTH) {
        std::tuple_element_t<I, Layers>::each(
            [&](int native, int torch) { pair(offset_of<I>(true) + native, offset_of<I>(false) + torch); });
        each_parameter<I + 1>(pair);
    }
}

template <class>
struct Make;
template <class... L>
struct Make<std::tuple<L...>> {
    static std::tuple<L...> layers() { return std::tuple<L...>(L(IMAGES)...); }
};

class Network {
  public:
    explicit Network(const float* pixels)
        : pixels_(pixels), layers_(Make<Layers>::layers()), logits_(IMAGES * Output::stride),
          slopes_(IMAGES * Output::stride), gradient_(WEIGHTS) {}

    // One SGD step on a batch; returns the batch's mean loss before it.
    double step(float* w, float lr, const Work& work, const int64_t* rows) {
        int64_t batch = work.batch;
        prepare<0>(w);
        if (batch <= IMAGES) return part(w, w, -lr, work, rows, int(batch), batch) / double(batch);
        std::memset(gradient_, 0, WEIGHTS * sizeof(float));
        double total = 0.0;
        for (int64_t at = 0; at < batch; at += IMAGES)
            total += part(w, gradient_, 1.0f, work, rows + at, int(std::min<int64_t>(IMAGES, batch - at)), batch);
        for (int i = 0; i < WEIGHTS; i++) w[i] -= lr * gradient_[i];
        return total / double(batch);
    }

    double mean_loss(const float* w, const Work& work) {
        prepare<0>(w);
        double total = 0.0;
        for (int64_t at = 0; at < work.judged_count; at += IMAGES) {
            int count = int(std::min<int64_t>(IMAGES, work.judged_count - at));
            fill(work, work.judged + at, count);
            forward<0>(w, count);
            total += loss(work, work.judged + at, count, 0.0f);
        }
        return total / double(work.judged_count);
    }

    // For each judged row, whether its label has the largest logit; of equal ones the first counts, as in torch.
    void right(const float* w, const Work& work, uint8_t* out) {
        prepare<0>(w);
        for (int64_t at = 0; at < work.judged_count; at += IMAGES) {
            int count = int(std::min<int64_t>(IMAGES, work.judged_count - at));
            fill(work, work.judged + at, count);
            forward<0>(w, count);
            for (int n = 0; n < count; n++) {
                const float* z = logits_ + n * Output::stride;
                out[at + n] = std::max_element(z, z + CLASSES) - z == work.y[work.judged[at + n]];
            }
        }
    }

  private:
    double part(const float* w, float* target, float scale, const Work& work, const int64_t* rows, int count,
                int64_t batch) {
        fill(work, rows, count);
        forward<0>(w, count);
        double total = loss(work, rows, count, 1.0f / float(batch));
        backward<DEPTH - 1>(w, target, scale, count);
        return total;
    }

    void fill(const Work& work, const int64_t* rows, int count) {
        auto& first = std::get<0>(layers_);
        for (int n = 0; n < count; n++) {
            size_t at = size_t(rows[n]) * First::In::size;
            if (work.is_float) {
                const float* x = static_cast<const float*>(work.x) + at;
                first.fill(n, [x](int i) { return x[i]; });
            } else {
                const uint8_t* x = static_cast<const uint8_t*>(work.x) + at;
                first.fill(n, [x, table = pixels_](int i) { return table[x[i]]; });
            }
        }
    }

    template <int I>
    void prepare(const float* w) {
        std::get<I>(layers_).prepare(w + offset_of<I>(true));
        if constexpr (I + 1 < DEPTH) prepare<I + 1>(w);
    }

    template <int I>
    float* output() {
        if constexpr (I + 1 < DEPTH) return std::get<I + 1>(layers_).in;
        else return logits_;
    }

    template <int I>
    float* output_gradient() {
        if constexpr (I + 1 < DEPTH) return std::get<I + 1>(layers_).grad;
        else return slopes_;
    }

    template <int I>
    void forward(const float* w, int count) {
        std::get<I>(layers_).forward(w + offset_of<I>(true), count, output<I>());
        if constexpr (I + 1 < DEPTH) forward<I + 1>(w, count);
    }

    template <int I>
    void backward(const float* w, float* target, float scale, int count) {
        constexpr int at = offset_of<I>(true);
        auto& layer = std::get<I>(layers_);
        layer.template backward<I == 0>(w + at, target + at, scale, count, output<I>(), output_gradient<I>());
        if constexpr (I > 0) backward<I - 1>(w, target, scale, count);
    }

    // Summed cross-entropy of the logits; their gradients, times scale, go to slopes_.
    double loss(const Work& work, const int64_t* rows, int count, float scale) {
        double total = 0.0;
        for (int n = 0; n < count; n++) {
            const float* z = logits_ + n * Output::stride;
            float* slope = slopes_ + n * Output::stride;
            int label = int(work.y[rows[n]]);
            float top = z[0], denominator = 0.0f;
            for (int c = 1; c < CLASSES; c++) top = z[c] > top ? z[c] : top;
            for (int c = 0; c < CLASSES; c++) denominator += slope[c] = std::exp(z[c] - top);
            for (int c = 0; c < CLASSES; c++) slope[c] = scale * (slope[c] / denominator - (c == label ? 1.0f : 0.0f));
            total += double(std::log(denominator)) - double(z[label] - top);
        }
        return total;
    }

    const float* pixels_;
    Layers layers_;
    Buffer<float> logits_, slopes_, gradient_;
};

// Examples lie anywhere in memory; the next batch is asked for while this one is computed.
void prefetch(const Work& work, const int64_t* rows) {
    const size_t bytes = size_t(First::In::size) * (work.is_float ? sizeof(float) : 1);
    for (int64_t n = 0; n < std::min<int64_t>(IMAGES, work.batch); n++)
        for (size_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(static_cast<const char*>(work.x) + size_t(rows[n]) * bytes + at);
}

Status check(const Work& work) {
    const int64_t* lists[2] = {work.steps, work.judged};
    const int64_t counts[2] = {work.iterations * work.batch, work.judged_count};
    for (int list = 0; list < 2; list++)
        for (int64_t i = 0; i < counts[list]; i++) {
            int64_t row = lists[list][i];
            if (row < 0 || row >= work.rows) return BAD_ROW;
            if (work.y[row] < 0 || work.y[row] >= CLASSES) return BAD_LABEL;
        }
    return OK;
}

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

// models: (chains, parameters); losses: (chains, clients). out and train_losses are null where clients only judge.
extern "C" int perennial_run(int chains, const float* models, const float* lrs, int clients, const void* work,
                             const float* pixels, int threads, float* out, double* train_losses, double* losses) {
    const Work* clients_work = static_cast<const Work*>(work);
    for (int k = 0; k < clients; k++)
        if (Status status = check(clients_work[k])) return status;
    try {
        Order order(chains, models, lrs, clients, clients_work, train_losses, losses);
        order.run(pixels, threads, out != nullptr);
        if (out) order.mean(out);
    } catch (const std::exception&) {
        return NO_MEMORY;
    }
    return OK;
}

// out: one byte a judged row of the only client.
extern "C" int perennial_right(const float* model, const void* work, const float* pixels, uint8_t* out) {
    const Work& client = *static_cast<const Work*>(work);
    if (Status status = check(client)) return status;
    try {
        NoDenormals here;
        Buffer<float> w(WEIGHTS);
        each_parameter([&](int native, int torch) { w[native] = model[torch]; });
        Network(pixels).right(w, client, out);
    } catch (const std::exception&) {
        return NO_MEMORY;
    }
    return OK;
}

extern "C" int perennial_parameters() { return TORCH_SIZE; }
