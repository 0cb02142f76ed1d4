// Steps and losses of the network, on the examples of one client.
#pragma once
#include <algorithm>
#include <cmath>

#include "work.h"

namespace {

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

}  // namespace
